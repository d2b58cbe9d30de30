"""The memory of a job you did not write: how many copies of the same data its processes hold, which, and why.

    python -m shardlab.watch [flags] -- torchrun --nproc-per-node 4 train.py     any command, unchanged
    python -m shardlab.watch [flags] --pid P                                     a job that runs already

The job's own exit code is passed on (128 + n for a signal; 0 with --pid); 125 is a failure of the watch itself.
SIGUSR1 compares content at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from shardlab import csvlog
from shardlab.ends import exit_code_of
from shardlab.errors import UsageError
from shardlab.measure import tree
from shardlab.records import new_run_id
from shardlab.watching import causes as reasons_why
from shardlab.watching import verdict
from shardlab.watching.config import WatchConfig
from shardlab.watching.facts import Cause, Facts
from shardlab.watching.history import History
from shardlab.watching.job import Job, as_a_shell_says, children_cpu_s, signals_go_to
from shardlab.watching.screen import Screen, are_one_place, width_of, wrapped
from shardlab.watching.watcher import Watcher
from shardlab.world import host_name

PROG = "python -m shardlab.watch"
OWN_FAILURE, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
LATELY_S = 10.0


@dataclass
class Said:
    """The last verdict that a census brought, which went to stderr; when, in seconds since the watch began."""

    lines: list[str] = field(default_factory=list)
    at_s: float = 0.0


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: _main(argv))


def _main(argv: list[str]) -> int:
    flags, command = _split(argv)
    config = tyro.cli(WatchConfig, description=__doc__, args=flags, prog=PROG)
    if bool(command) == bool(config.pid):
        raise UsageError(
            "a job is needed: either a command after -- or --pid", " ".join(argv) or "nothing",
            cure=f"{PROG} -- torchrun --nproc-per-node 4 train.py",
        )  # fmt: skip
    if config.results != "none":
        csvlog.check_writable(Path(config.results))
    return _started(config, command) if command else _attached(config)


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags of ours before ``--``, the command after it."""
    at = argv.index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


def _started(config: WatchConfig, command: list[str]) -> int:
    """Run the command, watch it, and pass on how it ended."""
    try:
        job = subprocess.Popen(command, stdout=sys.stderr if config.json else None)
    except FileNotFoundError:
        print(f"shardlab: no such command: {command[0]}", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"shardlab: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE
    with signals_go_to(job):
        try:
            _watch(config, (job.pid,), job)
        except Exception as error:  # the job is worth more than the watch
            job.wait()
            print(f"shardlab: the watch failed: {type(error).__name__}: {error}", file=sys.stderr)
            return OWN_FAILURE
        return as_a_shell_says(job.wait())


def _attached(config: WatchConfig) -> int:
    for pid in config.pid:
        if not tree.is_alive(pid):
            raise UsageError("--pid must be of a process that runs", pid)
    _watch(config, config.pid, None)
    return 0


def _watch(config: WatchConfig, roots: tuple[int, ...], job: Job | None) -> None:
    """Until the job ends, or with ``--pid`` until Ctrl-C or the time is over; then say what was found."""
    run_id = new_run_id()
    results = None if config.results == "none" else str(Path(config.results).resolve())
    history = History(run_id, host_name(), results)
    said = Said()
    with Screen(shown=config.live and not config.quiet) as screen:

        def say(facts: Facts, found: tuple[Cause, ...]) -> None:
            if not config.quiet:
                said.lines = list(verdict.sentences(facts, found, watcher.refused, watcher.why))
                screen.say([f"After {facts.t_s:.0f} s:", *said.lines])
                said.at_s = history.t_s

        watcher = Watcher(config, roots, history, say)
        signal.signal(signal.SIGUSR1, lambda *_: setattr(watcher, "wanted", True))
        if not config.quiet and job is not None:
            screen.say([f"Watching process {job.pid}; kill -USR1 {os.getpid()} compares content at once."])
        try:
            _loop(config, watcher, screen, job)
        except KeyboardInterrupt:
            if job is not None:
                raise
    history.timeline.flush()
    _tell(config, watcher, job, run_id, said)


def _loop(config: WatchConfig, watcher: Watcher, screen: Screen, job: Job | None) -> None:
    """Steps, with pauses between them."""
    found: tuple[Cause, ...] = ()
    census = None
    while True:
        pause = watcher.step()
        if screen.is_due(watcher.history.t_s):
            if watcher.census is not census:
                census, found = watcher.census, reasons_why.found(watcher.facts())
            screen.draw(watcher.history.t_s, watcher.history.seen(), watcher.limits(), found, watcher.refused)
        if job is not None:
            try:
                job.wait(max(pause, 0.01))
                return
            except subprocess.TimeoutExpired:
                continue
        time.sleep(max(pause, 0.01))
        over = config.for_seconds is not None and watcher.history.t_s >= config.for_seconds
        if over or not watcher.is_alive():
            return


def _no_census(config: WatchConfig, job: Job | None) -> str:
    if config.census == "never":
        return "--census never"
    who = "the watch" if job is None else "the job"
    return f"{who} ended before its memory had settled; --census-at SECONDS or SIGUSR1 take one earlier"


def _tell(config: WatchConfig, watcher: Watcher, job: Job | None, run_id: str, said: Said) -> None:
    facts = watcher.facts()
    found = reasons_why.found(facts)
    why = watcher.why or _no_census(config, job)
    refused = watcher.refused
    out = sys.stderr if config.json else sys.stdout
    code = None if job is None else job.returncode
    lines = list(verdict.sentences(facts, found, refused, why))
    if lines == said.lines and are_one_place(out, sys.stderr) and (job is None or facts.t_s - said.at_s < LATELY_S):
        lines = []  # nothing was written below it, or little
    if code == -signal.SIGKILL or facts.out_of_memory_kills:
        lines.insert(0, verdict.killed(facts))
    timeline, start_s, census_s = watcher.history.timeline, watcher.start_cpu_s, watcher.census_cpu_s
    cpu_s, job_cpu_s = time.process_time() - start_s - census_s, None if job is None else children_cpu_s()
    share = f", {cpu_s / job_cpu_s:.1%} of the job's" if job_cpu_s and job_cpu_s >= 1 else ""
    lines.append(
        f"Watching took {cpu_s:.2f} s of CPU{share}; censuses {census_s:.2f} s, its own start {start_s:.2f} s."
    )
    for line in wrapped(lines, width_of(out)):
        print(line, file=out, flush=True)
    if config.results != "none":
        print(f"Rows: {config.results}/memory.csv, run {run_id}", file=out)
    if config.json:
        more: dict[str, Any] = {
            "run_id": run_id, "exit_code": None if code is None else as_a_shell_says(code),
            "pss_peak_bytes": timeline.pss_peak_bytes, "rss_peak_bytes": timeline.rss_peak_bytes,
            "watch_cpu_s": cpu_s, "census_cpu_s": census_s, "start_cpu_s": start_s, "job_cpu_s": job_cpu_s,
            "seconds": facts.t_s,
        }  # fmt: skip
        print(json.dumps(verdict.as_object(facts, found, refused, more, why)), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

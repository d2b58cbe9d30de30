"""Ranks on this node, started and watched by torch's elastic agent; all of them ended when one fails.

The agent is upstream's. What is added: a pipe that every rank follows, so that nothing outlives the launcher;
a deadline; Ctrl-C without a traceback; and the first failing rank's own words instead of the agent's summary.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from shardlab.engine import lifeline
from shardlab.engine.job import LIFELINE, Job
from shardlab.engine.rank import main as rank_main
from shardlab.errors import ExitCode, Interrupted, RunFailed, ShardlabError
from shardlab.launch import rundir
from shardlab.launch.probe import describe_failure
from shardlab.process import call_no_semaphores_leaked, heeded_signals, without_main

SHUTDOWN_S = 2  # from SIGTERM to SIGKILL, for a rank that is stopped or stuck
POLL_S = 0.05


def launch(job: Job, watch: Callable[[Path], None], inherited: Any = None) -> None:
    """Run the ranks to their end. ``watch(run_dir)`` is called every 0.1 s or so, in a thread of its own.

    Raises RunFailed with the first failing rank's error, or Interrupted.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if job.config.start_method == "forkserver":
        multiprocessing.set_forkserver_preload(["torch", "shardlab.engine.rank"])
        rundir.sign_sockets()
    call_no_semaphores_leaked()
    rundir.sign_semaphores()
    logs = job.folder / "agent"
    logs.mkdir(exist_ok=True)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.config.nproc,
        run_id=job.run_id,
        max_restarts=0,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method=job.config.start_method,
        monitor_interval=POLL_S,
        shutdown_timeout=SHUTDOWN_S,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs)),
        signals_to_handle="SIGQUIT",
    )
    with _Rope(job, watch) as rope, without_main():
        try:
            elastic_launch(config, rank_main)(job.run_dir, inherited)
        except ChildFailedError as error:
            rope.raise_reason()
            raise first_failure(job, error, rope.ranks) from None
        rope.raise_reason()


class _Rope:
    """The write end of the lifeline, and all reasons to let go of it: a signal, the deadline."""

    def __init__(self, job: Job, watch: Callable[[Path], None]) -> None:
        self.job = job
        self.reason: ShardlabError | None = None
        self.ranks: list[BaseProcess] = []  # by rank, as soon as all have been started
        self._watch = watch
        self._fd: int | None = lifeline.create(job.folder / LIFELINE)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._handlers: dict[int, Any] = {}

    def cut(self, reason: ShardlabError) -> None:
        """End all ranks now; the first reason stays."""
        if self.reason is None:
            self.reason = reason
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def raise_reason(self) -> None:
        """Raise what ended the run, if it was not the ranks themselves."""
        if self.reason is not None:
            raise self.reason

    def __enter__(self) -> _Rope:
        # The thread starts first: it takes the signal that the main thread, and so every child, blocks.
        # A rank still importing then sleeps through Ctrl-C instead of printing a traceback.
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            if self.job.config.start_method != "fork":
                resource_tracker.ensure_running()  # which lets SIGINT through again when it starts
            for number in heeded_signals():
                self._handlers[number] = signal.signal(number, self._on_signal)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)
        if self._handlers:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        over = isinstance(self.reason, Interrupted)  # an impatient second Ctrl-C changes nothing any more
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_IGN if over else handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.cut(Interrupted(number, "all ranks were ended, rows written so far are kept"))

    def _run(self) -> None:
        deadline = time.monotonic() + self.job.timeout_s
        ending = 0.0
        while not self._done.wait(0.1):
            self._watch(self.job.folder)
            self.ranks = self.ranks or _started(self.job.config.nproc)
            if self._is_ending():
                ending += 0.1
            if ending > SHUTDOWN_S:
                self._kill()
            if time.monotonic() > deadline:
                self.cut(
                    RunFailed(
                        f"the run did not end within --timeout {self.job.timeout_s:g} s: all ranks were ended"
                    )
                )

    def _is_ending(self) -> bool:
        # `exitcode` would reap what the agent has to.
        codes = [getattr(process._popen, "returncode", None) for process in self.ranks]  # type: ignore[attr-defined]
        return self.reason is not None or any(codes) or bool(lifeline.failed(self.job.folder))

    def _kill(self) -> None:
        """End ranks that are stopped or stuck: the agent waits 30 s for them once another has failed."""
        for process in multiprocessing.active_children():
            process.kill()


def _started(count: int) -> list[BaseProcess]:
    """The processes of all ranks, in their order; none where some are still to come."""
    # Not active_children(), which waits for those that ended: that is for the agent alone to do.
    found = list(multiprocessing.process._children)  # type: ignore[attr-defined]
    return sorted(found, key=lambda process: process._identity) if len(found) == count else []


def first_failure(job: Job, error: Any, ranks: Sequence[BaseProcess]) -> RunFailed:
    """The error of the rank that failed first, in its own words and with its own exit code.

    Ranks that lose a peer complain too; they are believed only when no rank has a reason of its own and none
    was killed without a word. The agent knows one exit code, which may be that of a rank that complains.
    """
    failures = lifeline.read_failures(job.folder)
    own = [failure for failure in failures if not failure.is_echo]
    if own:
        failed = RunFailed(_in_own_words(own[0]))
        failed.exit_code = ExitCode(own[0].exit_code)
        return failed
    rank, reported = error.get_first_failure()
    ended = {n: process.exitcode or 0 for n, process in enumerate(ranks)} | {rank: reported.exitcode}
    spoke = {failure.rank for failure in failures}
    if rank in spoke:
        killed = [number for number, code in ended.items() if number not in spoke and code < 0]
        if not killed:
            return RunFailed(describe_failure(f"rank {failures[0].rank} lost another rank", failures[0]))
        rank = killed[0]
    return RunFailed(f"rank {rank} failed: {_how_it_died(ended[rank])}")


def _in_own_words(failure: lifeline.Failure) -> str:
    if failure.expected:
        named = failure.message.startswith("rank ")
        return failure.message if named else f"rank {failure.rank}: {failure.message}"
    text = describe_failure(f"rank {failure.rank} failed", failure)
    return text if failure.where else f"{failure.trace}\n{text}"


def _how_it_died(exit_code: int) -> str:
    if exit_code >= 0:
        return f"it ended with exit code {exit_code} and without a word"
    name = signal.Signals(-exit_code).name
    hint = " (by hand, or the kernel's out-of-memory killer)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"

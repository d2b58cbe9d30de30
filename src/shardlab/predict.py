"""Say whether a large job will fit into a node's memory, from a few small runs of it on this machine.

Runs the data path on up to 3 ranks and 2 workers of each, with the dataset and with stand-ins in its place, fits
what a rank, a worker, a batch that waits and each byte of the dataset cost, and says what a node of the whole job
needs, what most of that is, and which change would make it fit. Without --limit a node has what is available here
now. Exit code 4: it does not fit, even at the lower end of the interval, or not into /dev/shm of this machine. Where
the limit lies within the interval, that is said, and the exit code is 0.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import tyro

from shardlab import csvlog
from shardlab.bar import Bar
from shardlab.command import has_cuda
from shardlab.config import OutputConfig, RunConfig, argv_of
from shardlab.ends import exit_code_of
from shardlab.errors import ExitCode
from shardlab.explain import explained
from shardlab.launch.spec import spec_of
from shardlab.plan import Resolved, resolve
from shardlab.predicting.answer import answered, as_object, show
from shardlab.predicting.model import small_runs
from shardlab.predicting.question import Question
from shardlab.predicting.sentences import size
from shardlab.show import console
from shardlab.world import refuse_to_join

PROG = "python -m shardlab.predict"


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the runs have it; it has to be set before torch loads
    argv = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: _main(argv))


def _main(argv: list[str]) -> int:
    def all_three(
        run: tyro.conf.OmitArgPrefixes[RunConfig],
        question: tyro.conf.OmitArgPrefixes[Question],
        output: tyro.conf.OmitArgPrefixes[OutputConfig],
    ) -> tuple[RunConfig, Question, OutputConfig]:
        return run, question, output

    config, question, output = tyro.cli(all_three, description=__doc__, args=argv, prog=PROG)
    if output.explain is not None:
        print(explained(output.explain))
        return int(ExitCode.OK)
    refuse_to_join(PROG)
    resolved = whole_epochs(resolve(config, cuda=config.device == "auto" and has_cuda(config.nproc)))
    if output.dry_run:
        return _dry_run(resolved, question)
    for note in resolved.notes:
        print(f"Note: {note}", file=sys.stderr)
    csvlog.check_writable(Path(output.results))
    with Bar(2, quiet=output.quiet) as bar:
        found = answered(resolved.config, question, replace(output, pss_timeline=True, control=True), bar)
    show(found, console(json=output.json), output.results)
    if output.json:
        print(json.dumps(as_object(found)), flush=True)
    # A gate, which fails where the job surely does not fit.
    return int(ExitCode.GATE if found.verdict == "does not fit" else ExitCode.OK)


def whole_epochs(resolved: Resolved) -> Resolved:
    """The job without ``--max-steps``, and a note where it was given: what it needs is what a whole epoch touches."""
    if resolved.config.max_steps is None:
        return resolved
    note = "--max-steps has no effect here: a whole epoch touches all of the dataset"
    return Resolved(replace(resolved.config, max_steps=None), (*resolved.notes, note))


def _dry_run(resolved: Resolved, question: Question) -> int:
    spec_of(resolved.config)
    for note in resolved.notes:
        print(f"Note: {note}")
    print(f"A node has {size(question.memory().nbytes)}. These would run, each with its control:")
    for small in small_runs(resolved.config):
        print("shardlab.profile", shlex.join(argv_of(small)))
    return int(ExitCode.OK)


if __name__ == "__main__":
    raise SystemExit(main())

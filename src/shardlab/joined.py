"""``shardlab.profile`` and ``shardlab.train`` as a rank of a job that another launcher started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

from shardlab.config import OutputConfig
from shardlab.errors import ExitCode
from shardlab.launch import join
from shardlab.local import finish, module_of, say_notes
from shardlab.plan import Resolved
from shardlab.process import die_with_parent, heeded_signals, prints_to_stderr
from shardlab.show import console, show
from shardlab.trainconfig import TrainConfig


def run_joined(
    resolved: Resolved, output: OutputConfig, argv: list[str], train: TrainConfig | None = None
) -> int:
    """Take part; rank 0 shows what came out and says by its exit code whether every sample arrived.

    A rank that is through ends here and now: while an interpreter is taken down, threads of torch that still run
    abort the process every now and then, and the launcher calls the job failed.
    """
    if multiprocessing.parent_process() is not None:
        return _in_a_fresh_interpreter(argv, train)
    if os.environ.get("RANK") == "0":
        say_notes(resolved)
    with prints_to_stderr():
        outcome = join.run(resolved.config, output, argv, train)
    code = int(ExitCode.OK)
    if outcome is not None:
        show(outcome, console(json=output.json), output.results)
        code = finish([outcome], output)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _in_a_fresh_interpreter(argv: list[str], train: TrainConfig | None) -> int:
    """The rank as a child of this process; its exit code.

    This process runs a function of somebody's program, as under Accelerate's notebook_launcher: the launcher
    waits until the function returns. Forked from a notebook, it also shares the notebook's memory, which no
    control run has.
    """
    die_with_parent()
    process = subprocess.Popen([sys.executable, "-m", module_of(train), *argv])
    for number in heeded_signals():  # for the rank to clear up by itself
        signal.signal(number, lambda number, _frame: process.send_signal(number))
    code = process.wait()
    return code if code >= 0 else 128 - code

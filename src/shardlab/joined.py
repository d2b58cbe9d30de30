"""``shardlab.profile`` as a rank of a job that another launcher started."""

from __future__ import annotations

import os
import sys

from shardlab.config import OutputConfig
from shardlab.errors import ExitCode
from shardlab.launch import join
from shardlab.local import finish, say_notes
from shardlab.plan import Resolved
from shardlab.process import prints_to_stderr
from shardlab.show import console, show


def run_joined(resolved: Resolved, output: OutputConfig, argv: list[str]) -> int:
    """Take part; rank 0 shows what came out and says by its exit code whether every sample arrived.

    A rank that is through ends here and now: while an interpreter is taken down, threads of torch that still run
    abort the process every now and then, and the launcher calls the job failed.
    """
    if os.environ.get("RANK") == "0":
        say_notes(resolved)
    with prints_to_stderr():
        outcome = join.run(resolved.config, output, argv)
    code = int(ExitCode.OK)
    if outcome is not None:
        show(outcome, console(json=output.json), output.results)
        code = finish([outcome], output)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

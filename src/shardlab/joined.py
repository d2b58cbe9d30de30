"""``shardlab.profile`` as a rank of a job that another launcher started."""

from __future__ import annotations

import os

from shardlab.config import OutputConfig
from shardlab.errors import ExitCode
from shardlab.launch import join
from shardlab.local import finish, say_notes
from shardlab.plan import Resolved
from shardlab.process import prints_to_stderr
from shardlab.show import console, show


def run_joined(resolved: Resolved, output: OutputConfig, argv: list[str]) -> int:
    """Take part; rank 0 shows what came out and says by its exit code whether every sample arrived."""
    if os.environ.get("RANK") == "0":
        say_notes(resolved)
    with prints_to_stderr():
        outcome = join.run(resolved.config, output, argv)
    if outcome is None:
        return int(ExitCode.OK)
    show(outcome, console(json=output.json), output.results)
    return finish([outcome], output)

"""``shardlab.profile`` as a rank of a job that another launcher started."""

from __future__ import annotations

import dataclasses
import os

from shardlab.config import OutputConfig
from shardlab.errors import ExitCode
from shardlab.launch import join
from shardlab.local import finish, say_notes
from shardlab.plan import Resolved
from shardlab.show import console, show


def run_joined(resolved: Resolved, output: OutputConfig, argv: list[str]) -> int:
    """Take part; rank 0 shows what came out and says by its exit code whether every sample arrived."""
    if os.environ.get("RANK") == "0":
        say_notes(resolved)
    stdout = os.dup(1)
    os.dup2(2, 1)  # what a dataset prints must not get among the figures
    try:
        outcome = join.run(resolved.config, output, argv)
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    if outcome is None:
        return int(ExitCode.OK)
    show(outcome, console(json=output.json), output.results)
    return finish([outcome], dataclasses.replace(output, quiet=True))

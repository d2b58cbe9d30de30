"""A command as a user starts it: its exit code, its JSON object, what it said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shardlab
from shardlab.world import without_rendezvous

SOURCE = str(Path(shardlab.__file__).parents[1])


@dataclass(frozen=True)
class Ended:
    """A command that ended. ``object`` is what ``--json`` printed, None where it printed nothing."""

    code: int
    object: Any
    stderr: str

    @property
    def row(self) -> dict[str, Any]:
        """The row of a run that ended well; fails with what the command said where it did not."""
        assert self.code == 0, self.stderr
        assert isinstance(self.object, dict), self.stderr
        return self.object

    @property
    def said(self) -> str:
        """Standard error with its line breaks and columns as single spaces."""
        return " ".join(self.stderr.split())


def code_of(main: Callable[[list[str]], int], *flags: str) -> int:
    """The exit code of a command in this process; the parser leaves by itself."""
    try:
        return main(list(flags))
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def profile(*flags: object, results: Path, deadline_s: float = 240) -> Ended:
    """Run ``shardlab.profile`` with ``flags`` to its end."""
    return run("shardlab.profile", *flags, results=results, deadline_s=deadline_s)


def train(*flags: object, results: Path, deadline_s: float = 240) -> Ended:
    """Run ``shardlab.train`` with ``flags`` to its end."""
    return run("shardlab.train", *flags, results=results, deadline_s=deadline_s)


def run(module: str, *flags: object, results: Path, deadline_s: float) -> Ended:
    """Run a module with ``--json`` and ``flags`` to its end, in a process group of its own.

    All of the group is killed, and the test failed, where it has not ended after ``deadline_s``.
    """
    command = [sys.executable, "-m", module, "--json", "--quiet", "--results", str(results)]
    process = subprocess.Popen(
        [*command, *map(str, flags)],
        env={**without_rendezvous(os.environ), "PYTHONPATH": SOURCE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=deadline_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise AssertionError(f"{' '.join(command)} did not end within {deadline_s} s: {err}") from None
        raise
    return Ended(process.returncode, json.loads(out) if out.strip() else None, err)

"""The commands as a user starts them, and what they print, as values.

Shared by the experiments that ask how much memory a configuration holds.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab.world import without_rendezvous

GRACE_S = 20.0  # a command that is told to end removes what it made


@dataclass(frozen=True)
class Ended:
    """A command that ended. ``row`` is its JSON object, None where it printed none; ``said`` all else."""

    code: int
    row: dict[str, Any] | None
    said: str
    results: Path

    @property
    def ran(self) -> dict[str, Any]:
        """The object of a run that ended well. Raises RuntimeError with what the command said where it did not."""
        if self.code != 0 or self.row is None:
            raise RuntimeError(f"exit code {self.code}: {self.said.strip()[-2000:]}")
        return self.row

    @property
    def node(self) -> dict[str, str]:
        """Its row of ``nodes.csv``."""
        return self._rows("nodes.csv")[0]

    @property
    def losses(self) -> list[float]:
        """The loss of each step of training, the mean over the ranks."""
        return [float(row["loss"]) for row in self._rows("training.csv")]

    def _rows(self, name: str) -> list[dict[str, str]]:
        with (self.results / name).open(newline="") as file:
            return [row for row in csv.DictReader(file) if row["run_id"] == self.ran["run_id"]]


def run(module: str, flags: str, results: Path, prefix: tuple[str, ...] = ()) -> Ended:
    """Run ``shardlab.MODULE`` with ``flags`` to its end, in a process group of its own.

    Where this process is interrupted the command is told to end, and killed with its group where it does not.
    """
    words = [*prefix, sys.executable, "-m", f"shardlab.{module}", *shlex.split(flags)]
    process = subprocess.Popen(
        [*words, "--json", "--quiet", "--results", str(results)],
        env=without_rendezvous(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, said = process.communicate()
    except BaseException:
        _end(process)
        raise
    return Ended(process.returncode, json.loads(out) if out.strip() else None, said, results)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def write_shards(source: str, folder: Path, shard_bytes: int) -> Path:
    """A dataset as shards on disk."""
    words = [source, str(folder), "--shard-bytes", str(shard_bytes), "--quiet"]
    subprocess.run([sys.executable, "-m", "shardlab.shard", *words], check=True, stdout=subprocess.DEVNULL)
    return folder


def reads_by_rank(row: dict[str, Any]) -> str:
    """Samples fetched in the last epoch, by rank."""
    last = max(rank["epoch"] for rank in row["ranks"])
    return " ".join(str(rank["reads"]) for rank in row["ranks"] if rank["epoch"] == last)


def held_mib_by_rank(said: str) -> tuple[float, ...]:
    """MiB of the shards that each rank opened, which only ``--sampler sharded`` says; empty where nothing does.

    >>> held_mib_by_rank("Bytes held, of shards opened: rank 0 1,024.0 MiB, rank 1\\n8.5 MiB.")
    (1024.0, 8.5)
    """
    line = re.search(r"Bytes held, of shards opened: (.*?MiB)\.", " ".join(said.split()))
    found = re.findall(r"rank \d+ ([\d,.]+) MiB", line[1]) if line else []
    return tuple(float(number.replace(",", "")) for number in found)


def end_as_interrupted() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that commands and groups of its own end with it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)

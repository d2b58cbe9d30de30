"""Runs of four ranks as benchmarks see them: short ones for their counters, measured ones, and a clock for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command import profile
from ranks import run_all
from shardlab.records import row

WORLD = 4
Row = dict[str, Any]


class Clock:
    """Seconds that were told, and no others."""

    __name__ = "slowest_rank"  # how saved benchmarks name their timer
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def put_forward(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(frozen=True)
class Run:
    """A run's row, of its audit alone where there was no control, and its ranks' rows, epoch by epoch."""

    row: Row
    ranks: Sequence[Row]

    @property
    def reads(self) -> list[int]:
        """Of the last epoch, by rank."""
        return [rank["reads"] for rank in self.ranks[-WORLD:]]

    @property
    def slowest_s(self) -> float:
        """Seconds of the slowest rank in an epoch, the mean over the timed epochs."""
        walls = [rank["delivered"] / rank["samples_per_s"] for rank in self.ranks]
        epochs = [walls[start : start + WORLD] for start in range(0, len(walls), WORLD)]
        return float(sum(map(max, epochs)) / len(epochs))


def measured(flags: Row, rounds: int, folder: Path) -> list[Run]:
    """Runs of the command, as many as rounds, with one control for all."""
    argv = [word for name, value in flags.items() for word in ("--" + name.replace("_", "-"), value)]
    argv += ["--start-method", "forkserver", "--repeats", rounds]
    ended = profile(*argv, results=folder, deadline_s=120 + 60 * rounds)
    assert ended.code == 0, ended.stderr
    return [Run(each, each["ranks"]) for each in (ended.object if rounds > 1 else [ended.object])]


def unmeasured(many: Sequence[Row], folder: Path) -> list[Run]:
    """A run for each of the flags, all in the same ranks: to start four costs more than a short epoch."""
    return [
        Run(vars(ran.audits[-1]), [row(report.row) for report in ran.reports])
        for ran in run_all(folder, many)
    ]

"""What does a rank cost that waits for its batch?

Hypothesis: at most 0.5 % of a core. The ranks of a ring sleep in the kernel until their part is there; a loop
that polls would take a whole core, or some percent with pauses.

How to read the answer: each sample takes its one reader 0.1 s asleep, so ranks wait nearly all the time. A row for
each epoch and rank without the reader (local rank 0 starts it, and the figure of a rank has its children in it):
``ratio`` is its processor seconds over the epoch's seconds.

    python experiments/idle_ranks.py [--epochs N]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from commandline import span
from pairs import argv_of
from publishing import publish
from shardlab.config import OutputConfig, RunConfig
from shardlab.engine.report import EpochReport
from shardlab.intervals import Median
from shardlab.launch import session
from shardlab.plan import resolve

DATA = Path(__file__).parent / "decoding.py"
FLAGS = {
    "sampler": "ring", "nproc": 4, "batch_size": 1, "max_steps": 20, "dataset": f"{DATA}:asleep_100ms",
    "start_method": "forkserver",
}  # fmt: skip
LIMIT = 0.005


@dataclass(frozen=True)
class Row:
    """One rank in one epoch."""

    epoch: int
    rank: int
    steps: int
    wall_s: float
    wait_s: float
    cpu_s: float
    ratio: float
    limit: float


def main() -> None:
    """One run of some epochs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=6, help="epochs of 8 s")
    epochs = parser.parse_args().epochs
    config = resolve(replace(RunConfig(), **FLAGS, epochs=epochs)).config
    with tempfile.TemporaryDirectory() as results:
        output = OutputConfig(results=results, quiet=True)
        (outcome,) = session.run(config, output, argv_of(FLAGS | {"epochs": epochs}), session.SILENT)
    rows = [row_of(report) for report in outcome.reports if report.row.rank]
    middle = Median.of([row.ratio for row in rows])
    print(f"a waiting rank: {middle.value:.2%} of a core{span(middle.low, middle.high, '.2%')}, limit {LIMIT:.1%}")
    publish("idle_ranks.csv", rows)


def row_of(report: EpochReport) -> Row:
    """What a rank's processor was busy for."""
    row, wall_s, cpu_s = report.row, report.wall_s, report.row.cpu_s or 0.0
    return Row(row.epoch, row.rank, row.steps, wall_s, row.wait_s, cpu_s, cpu_s / wall_s, LIMIT)


if __name__ == "__main__":
    main()

"""What does a measured run cost, from the first to the last of its processes, against a bare loop under torchrun?

Hypothesis: `python -m shardlab.profile --no-control` takes at most 1.15 times as long as torchrun takes for
bare_loop.py, with the same ranks, dataset, batches, two epochs, every byte of every batch read in both; start-up, the
monitor, the ledger, the reading of memory and the rows are included. The control run is not: it doubles the time
of the first of --repeats, and that is said where it is turned off.

How to read the answer: ``ratio`` is the median over pairs of whole commands, run in turn, of profile's seconds
over torchrun's, ``low`` and ``high`` its 95 % interval; ``cpu_ratio`` the same of the processor seconds of all their
processes.

    python experiments/beside_torchrun.py [--full] [--pairs N]       (--full: 15 pairs instead of 5)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from commandline import span
from publishing import publish
from shardlab.intervals import Median, Ratio

HERE = Path(__file__).parent
RANKS, BATCH, EPOCHS = 4, 32, 2
DATASETS = {"256 MiB of 150 KB": "synthetic:256MiB:3x224x224", "64 MiB of 784 B": "synthetic:64MiB:784"}
LIMIT = 1.15


@dataclass(frozen=True)
class Row:
    """One dataset; seconds are medians of whole commands."""

    name: str
    pairs: int
    ratio: float
    low: float | None
    high: float | None
    limit: float
    cpu_ratio: float
    profile_s: float
    torchrun_s: float


@dataclass(frozen=True)
class Took:
    """A whole command: seconds of the clock, and of the processor over all its processes."""

    wall_s: float
    cpu_s: float


def took(command: list[str]) -> Took:
    """Run it to its end."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall_s, after = time.perf_counter() - began, os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Took(wall_s, cpu_s)


def commands(dataset: str, results: str) -> tuple[list[str], list[str]]:
    """Profile, and the bare loop."""
    profile = [
        sys.executable, "-m", "shardlab.profile", "--no-control", "--quiet", "--nproc", str(RANKS), "--dataset",
        dataset, "--batch-size", str(BATCH), "--warmup", "1", "--epochs", str(EPOCHS - 1), "--results", results,
    ]  # fmt: skip
    bare = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
        str(HERE / "bare_loop.py"), dataset, str(BATCH), str(EPOCHS),
    ]  # fmt: skip
    return profile, bare


def measure(name: str, dataset: str, pairs: int) -> Row:
    """The pairs of one dataset, every second one the other way round."""
    profiles, bares = [], []
    with tempfile.TemporaryDirectory() as results:
        profile, bare = commands(dataset, results)
        for pair in range(pairs):
            if pair % 2:
                bares.append(took(bare))
            profiles.append(took(profile))
            if not pair % 2:
                bares.append(took(bare))
    times = Ratio.of([run.wall_s for run in profiles], [run.wall_s for run in bares])
    cpu = Ratio.of([run.cpu_s for run in profiles], [run.cpu_s for run in bares])
    return Row(
        name, pairs, times.value, times.low, times.high, LIMIT, cpu.value,
        Median.of([run.wall_s for run in profiles]).value, Median.of([run.wall_s for run in bares]).value,
    )  # fmt: skip


def main() -> None:
    """Measure, print, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="15 pairs instead of 5")
    parser.add_argument("--pairs", type=int, help="this many")
    options = parser.parse_args()
    rows = []
    for name, dataset in DATASETS.items():
        rows.append(measure(name, dataset, options.pairs or (15 if options.full else 5)))
        row = rows[-1]
        print(
            f"{name:20} {row.ratio:.2f}{span(row.low, row.high)} limit {LIMIT}; processor {row.cpu_ratio:.2f}; "
            f"{row.profile_s:.1f} s and {row.torchrun_s:.1f} s",
            flush=True,
        )
    publish("beside_torchrun.csv", rows)


if __name__ == "__main__":
    main()

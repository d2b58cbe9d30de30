"""What does measuring cost the job that is measured?

Hypothesis: the ledger (every delivered index written down) takes less than 2 % of a rank's epoch, and the
monitor less than 1 % of the job's processor time.

How to read the answer. ``ledger``: one rank runs the same epoch with and without the ledger, in turn, and
the ratio of processor seconds is taken pair by pair; ``high`` is the upper end of a 95 % bootstrap interval
of the median ratio, to be compared with 1.02. ``A/A`` is the same comparison of the loop with itself: what it
shows is noise. ``monitor``: processor seconds of the monitor over those of all processes of a profiled run,
start-up of the monitor and the control run apart; to be compared with 0.01.

    python experiments/profiling_cost.py [--full]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from publishing import publish
from shardlab import dataset, plugins
from shardlab.config import RunConfig
from shardlab.dataset import DatasetSpec
from shardlab.engine.loop import LoopTools, run_epoch
from shardlab.index.ledger import Ledger
from shardlab.plan import Plan
from shardlab.store import ReadCounter, Store
from shardlab.world import World


@dataclass(frozen=True)
class Row:
    """``low`` and ``high`` bound the median of the ratios; ``limit`` is what ``high`` should stay below."""

    what: str
    setting: str
    pairs: int
    ratio: float
    low: float
    high: float
    limit: float | None


class NoLedger:
    """Takes what a ledger takes and keeps nothing."""

    def write(self, indices: object, word: object = None) -> None:
        """Nothing."""


def main() -> None:
    """Measure, print, write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="more pairs")
    full = parser.parse_args().full
    rows = [*ledger_rows(pairs=100 if full else 30), *monitor_rows(runs=15 if full else 5)]
    for row in rows:
        print(
            f"{row.what:8} {row.setting:44} {row.ratio:.4f} [{row.low:.4f}, {row.high:.4f}] limit {row.limit}"
        )
    publish("profiling_cost.csv", rows)


def ledger_rows(pairs: int) -> Iterator[Row]:
    """Small samples first: there a batch costs least, and the ledger most."""
    for text, batch in (("synthetic:16MiB:784", 64), ("synthetic:256MiB:3x224x224", 32)):
        with tempfile.TemporaryDirectory() as folder:
            epoch = one_rank(DatasetSpec(text), batch, Path(folder))
            epoch(True), epoch(False)
            setting = f"distributed, {text}, batch {batch}"
            yield row_of("ledger", setting, [epoch(True) / epoch(False) for _ in range(pairs)], 1.02)
            yield row_of("A/A", setting, [epoch(False) / epoch(False) for _ in range(pairs)], None)


def one_rank(spec: DatasetSpec, batch: int, folder: Path) -> Callable[[bool], float]:
    """A function that runs one epoch, with a ledger or without, and returns its processor seconds."""
    raw = dataset.open_dataset(spec)
    store = Store(raw, ReadCounter(folder / "reads"))
    config = RunConfig(dataset=spec.text, nproc=1, batch_size=batch, worker_start_method="fork", device="cpu")
    world = World(0, 1, 0, 1)
    loader = plugins.find("datapath")["distributed"].load().open(store, Plan.of(config, len(raw)), world)
    tools = LoopTools(torch.device("cpu"), None, None, lambda _steps, _expected: None, None)

    def epoch(with_ledger: bool) -> float:
        log = Ledger.create(folder / "ledger", len(raw)) if with_ledger else NoLedger()
        done = run_epoch(loader, 1, log, tools, None, None)
        if isinstance(log, Ledger):
            log.close()
        return done.cpu_s

    return epoch


def monitor_rows(runs: int) -> Iterator[Row]:
    """Whole profiled runs, as a user starts them."""
    for flags in (
        ["--sampler", "accelerate", "--nproc", "4"],
        ["--nproc", "4", "--workers", "2", "--epochs", "3"],
    ):
        shares = []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as results:
                before = os.times()
                command = [sys.executable, "-m", "shardlab.profile", *flags, "--json", "--quiet"]
                command += ["--results", results]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
                after = os.times()
                run = json.loads(done.stdout)
            job = after.children_user + after.children_system - before.children_user - before.children_system
            # Half of the command is the control run, in which another monitor works: its share is the same.
            shares.append(run["monitor_cpu_s"] / (job / 2))
        yield row_of("monitor", " ".join(flags), shares, 0.01)


def row_of(what: str, setting: str, ratios: list[float], limit: float | None) -> Row:
    """The median of the ratios with a 95 % percentile bootstrap interval (Efron 1979)."""
    rng = np.random.default_rng(0)
    draws = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return Row(what, setting, len(ratios), statistics.median(ratios), float(low), float(high), limit)


if __name__ == "__main__":
    main()

"""What does measuring cost the job that is measured?

Hypothesis: the ledger (every delivered index written down) takes less than 2 % of a rank's epoch, and the
monitor less than 1 % of the job's processor time.

How to read the answer. ``ledger``: one rank runs the same epoch with and without the ledger, in turn, and
the ratio of processor seconds is taken pair by pair; ``high`` is the upper end of a 95 % bootstrap interval
of the median ratio, to be compared with 1.02. ``A/A`` is the same comparison of the loop with itself: what it
shows is noise. ``monitor``: processor seconds of the monitor over those of launcher, ranks and workers, from
their start to their end, the monitor's own start-up and the control run apart; to be compared with 0.01.
``of it, between holds``: the part that goes on for as long as a run does; the rest is one reading at its end.

    python experiments/profiling_cost.py [--full]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from commandline import span
from publishing import publish
from shardlab import dataset, plugins
from shardlab.config import RunConfig, parse
from shardlab.dataset import DatasetSpec
from shardlab.engine.loop import Feed, LoopTools, compute_on
from shardlab.index.ledger import Ledger
from shardlab.intervals import Median
from shardlab.launch import rundir, session
from shardlab.launch.spec import spec_of
from shardlab.launch.watch import Watched
from shardlab.plan import Plan, resolve
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
            f"{row.what:8} {row.setting:44} {row.ratio:.4f}{span(row.low, row.high, '.4f')} limit {row.limit}"
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
    tools = LoopTools(torch.device("cpu"), None, lambda _steps, _expected: None, None)

    def epoch(with_ledger: bool) -> float:
        log = Ledger.create(folder / "ledger", len(raw)) if with_ledger else NoLedger()
        feed = Feed(loader, 1, log, tools, None, None)
        compute_on(feed, None)
        done = feed.end()
        if isinstance(log, Ledger):
            log.close()
        return done.cpu_s

    return epoch


def monitor_rows(runs: int) -> Iterator[Row]:
    """The ranks of a profiled run with the monitor beside them, the control run apart."""
    for flags in ("--sampler accelerate --nproc 4", "--nproc 4 --workers 2 --epochs 3"):
        between, holds = zip(*(monitor_share(flags) for _ in range(runs)), strict=True)
        yield row_of("monitor", flags, [a + b for a, b in zip(between, holds, strict=True)], 0.01)
        yield row_of("of it, between holds", flags, list(between), None)


def monitor_share(flags: str) -> tuple[float, float]:
    """Processor seconds of the monitor between holds and in them, each over those of launcher and ranks."""
    config, output = parse("", flags.split(), "profile")
    config = resolve(config).config
    spec = spec_of(config)
    facts = dataset.facts_without_building(spec)
    assert facts is not None
    with rundir.run_folder() as folder, tempfile.TemporaryDirectory() as results:
        job = session.new_job(config, spec, facts, folder, results, output.timeout)
        watched = Watched()
        before = os.times()
        session.run_ranks(job, session.SILENT, watched)
        after = os.times()
    end = watched.end
    assert end is not None
    everything = sum(after[:4]) - sum(
        before[:4]
    )  # of this process, which launches, and of all that it reaped
    job_s = everything - end.monitor_cpu_s - end.startup_cpu_s
    return (end.monitor_cpu_s - end.hold_cpu_s) / job_s, end.hold_cpu_s / job_s


def row_of(what: str, setting: str, ratios: list[float], limit: float | None) -> Row:
    """The median of the ratios, with its interval."""
    middle = Median.of(ratios)
    return Row(what, setting, len(ratios), middle.value, middle.low, middle.high, limit)


if __name__ == "__main__":
    main()

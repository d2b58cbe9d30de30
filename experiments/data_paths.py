"""How much faster are `keyed` and `ring` than the paths they replace, with one copy and one reader?

Hypothesis, at 4 ranks: `ring` at least 30x `accelerate` (dispatch) on samples of 784 bytes and 15x on 150 KB;
`keyed` with one shared copy at least 5x `distributed` with private copies on 784 bytes and 1.3x on 150 KB; `ring`
at least 4x and 1.2x. With decoding (`--full`) `ring` is never slower than dispatch at equal total workers.

How to read the answer: each row is a pair of configurations run in turn, A B A B, each time in fresh processes;
``ratio`` is the median of A's distinct samples/s over B's, pair by pair, ``low`` and ``high`` a 95 % bootstrap
interval of it. Every rank reads every byte of every batch. ``copies`` and ``reads`` of both are from the same
runs: reads by rank, so `N 0 0 0` is one reader.

    python experiments/data_paths.py [--full] [--only NAME]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from publishing import publish
from shardlab.config import OutputConfig, RunConfig
from shardlab.launch import session
from shardlab.launch.summary import Outcome
from shardlab.plan import resolve

SMALL = {"dataset": "synthetic:256MiB:784", "batch_size": 64}
LARGE = {"dataset": "synthetic:256MiB:3x224x224", "batch_size": 32}
BASE = RunConfig(nproc=4, start_method="forkserver")


@dataclass(frozen=True)
class Comparison:
    """Two configurations, as changes to ``BASE``, and how many times faster the first should be."""

    name: str
    a: dict[str, object]
    b: dict[str, object]
    target: float


COMPARISONS = [
    Comparison(
        "ring / dispatch, 784 B",
        {**SMALL, "sampler": "ring", "max_steps": 300},
        {**SMALL, "sampler": "accelerate", "max_steps": 300},
        30,
    ),
    Comparison(
        "ring / dispatch, 150 KB", {**LARGE, "sampler": "ring"}, {**LARGE, "sampler": "accelerate"}, 15
    ),
    Comparison(
        "keyed+shared / distributed+private, 784 B",
        {**SMALL, "sampler": "keyed"},
        {**SMALL, "sampler": "distributed"},
        5,
    ),
    Comparison(
        "keyed+shared / distributed+private, 150 KB",
        {**LARGE, "sampler": "keyed", "epochs": 3},
        {**LARGE, "sampler": "distributed", "epochs": 3},
        1.3,
    ),
    Comparison(
        "ring / distributed+private, 784 B",
        {**SMALL, "sampler": "ring"},
        {**SMALL, "sampler": "distributed"},
        4,
    ),
    Comparison(
        "ring / distributed+private, 150 KB",
        {**LARGE, "sampler": "ring", "epochs": 3},
        {**LARGE, "sampler": "distributed", "epochs": 3},
        1.2,
    ),
    Comparison(
        "ring, pool of 4 / distributed, a worker per rank, 784 B",
        {**SMALL, "sampler": "ring", "workers": 4, "max_steps": 600},
        {**SMALL, "sampler": "distributed", "workers": 1, "max_steps": 600},
        5,
    ),
    Comparison(
        "ring, pool of 4 / distributed, a worker per rank, 150 KB",
        {**LARGE, "sampler": "ring", "workers": 4},
        {**LARGE, "sampler": "distributed", "workers": 1},
        5,
    ),
]


@dataclass(frozen=True)
class Row:
    """One comparison. Rates are medians, in distinct samples per second."""

    name: str
    pairs: int
    ratio: float
    low: float
    high: float
    target: float
    a_samples_per_s: float
    b_samples_per_s: float
    a_copies: float | None
    b_copies: float | None
    a_reads: str
    b_reads: str


def main() -> None:
    """Run all comparisons, print each as it ends, write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="25 pairs instead of 15")
    parser.add_argument("--pairs", type=int, help="this many pairs")
    parser.add_argument("--only", default="", help="run the comparisons whose name contains this")
    options = parser.parse_args()
    rows = []
    for comparison in COMPARISONS:
        if options.only in comparison.name:
            rows.append(measure(comparison, pairs=options.pairs or (25 if options.full else 15)))
            row = rows[-1]
            print(
                f"{row.name:58} {row.ratio:6.2f} [{row.low:.2f}, {row.high:.2f}] target {row.target}",
                flush=True,
            )
    if not options.only:
        publish("data_paths.csv", rows)


def measure(comparison: Comparison, pairs: int) -> Row:
    """The pairs of one comparison, interleaved."""
    with tempfile.TemporaryDirectory() as results:
        a, b = (runs(changes, pairs, results) for changes in (comparison.a, comparison.b))
        outcomes = list(zip(a, b, strict=True))
    firsts, seconds = [a.run.measured for a, _ in outcomes], [b.run.measured for _, b in outcomes]
    ratios = [x.samples_per_s / y.samples_per_s for x, y in zip(firsts, seconds, strict=True)]
    low, high = interval(ratios)
    return Row(
        comparison.name, pairs, statistics.median(ratios), low, high, comparison.target,
        statistics.median(x.samples_per_s for x in firsts), statistics.median(y.samples_per_s for y in seconds),
        middle(x.copies for x in firsts), middle(y.copies for y in seconds),
        reads(outcomes[-1][0]), reads(outcomes[-1][1]),
    )  # fmt: skip


def runs(changes: dict[str, object], repeats: int, results: str) -> Iterator[Outcome]:
    """Outcomes of one configuration, each measured when it is asked for."""
    config = resolve(replace(BASE, repeats=repeats, **changes)).config
    argv = [word for name, value in changes.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    argv += ["--nproc", "4", "--start-method", "forkserver", "--quiet"]
    return session.run(config, OutputConfig(results=results, quiet=True), argv, session.SILENT)


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median (Efron 1979)."""
    draws = np.median(np.random.default_rng(0).choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)


def middle(values: Iterator[float | None]) -> float | None:
    """Median of what is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def reads(outcome: Outcome) -> str:
    """Samples fetched in the timed epoch, by rank."""
    return " ".join(str(report.row.reads) for report in outcome.reports[-4:])


if __name__ == "__main__":
    main()

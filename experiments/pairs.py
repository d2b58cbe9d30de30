"""Two configurations of ``shardlab.profile`` run in turn, A B A B, each time in fresh processes.

Shared by the experiments that compare data paths. ``ratio`` is the median, pair by pair, of A's distinct
samples/s over B's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from commandline import span
from publishing import publish
from shardlab.config import OutputConfig, RunConfig
from shardlab.intervals import interval
from shardlab.launch import session
from shardlab.launch.summary import Outcome
from shardlab.plan import resolve

BASE: dict[str, Any] = {"nproc": 4, "start_method": "forkserver"}
SMALL: dict[str, Any] = {"dataset": "synthetic:256MiB:784", "batch_size": 64}
LARGE: dict[str, Any] = {"dataset": "synthetic:256MiB:3x224x224", "batch_size": 32}
FEWEST_PAIRS = 15


@dataclass(frozen=True)
class Comparison:
    """Two configurations, as flags, and how many times faster the first should be."""

    name: str
    a: dict[str, Any]
    b: dict[str, Any]
    target: float


@dataclass(frozen=True)
class Row:
    """One comparison. Rates are medians, in distinct samples per second; ``reads`` by rank, of the last pair."""

    name: str
    pairs: int
    ratio: float
    low: float | None
    high: float | None
    target: float
    cpu_ratio: float
    a_samples_per_s: float
    b_samples_per_s: float
    a_copies: float | None
    b_copies: float | None
    a_reads: str
    b_reads: str
    a_flags: str
    b_flags: str


def run(doc: str, comparisons: Sequence[Comparison], name: str) -> list[Row]:
    """Run those that ``--only`` names, print and publish each as it ends, unless there are too few pairs."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="25 pairs instead of 15")
    parser.add_argument("--pairs", type=int, help="this many pairs")
    parser.add_argument("--only", default="", help="only comparisons whose name contains this")
    options = parser.parse_args()
    pairs = options.pairs or (25 if options.full else FEWEST_PAIRS)
    rows = []
    for comparison in comparisons:
        if options.only not in comparison.name:
            continue
        rows.append(measure(comparison, pairs))
        print(said(rows[-1]), flush=True)
        if pairs >= FEWEST_PAIRS:
            publish(name, rows, key="name")
    if pairs >= FEWEST_PAIRS:
        publish(name, rows, key="name" if options.only else None)
    return rows


def said(row: Row) -> str:
    """A line for the screen."""
    return f"{row.name:58} {row.ratio:6.2f}{span(row.low, row.high)} target {row.target}"


def measure(comparison: Comparison, pairs: int) -> Row:
    """The pairs of one comparison, interleaved."""
    with tempfile.TemporaryDirectory() as results:
        a, b = (runs(flags, pairs, results) for flags in (comparison.a, comparison.b))
        outcomes = list(zip(a, b, strict=True))
    firsts, seconds = [a.run.measured for a, _ in outcomes], [b.run.measured for _, b in outcomes]
    both = list(zip(firsts, seconds, strict=True))
    ratios = [x.samples_per_s / y.samples_per_s for x, y in both]
    return Row(
        comparison.name, pairs, statistics.median(ratios), *interval(ratios), comparison.target,
        statistics.median(y.cpu_s_per_1k_samples / x.cpu_s_per_1k_samples for x, y in both),
        statistics.median(x.samples_per_s for x in firsts), statistics.median(y.samples_per_s for y in seconds),
        middle(x.copies for x in firsts), middle(y.copies for y in seconds),
        reads(outcomes[-1][0]), reads(outcomes[-1][1]),
        published(comparison.a), published(comparison.b),
    )  # fmt: skip


def runs(flags: dict[str, Any], repeats: int, results: str) -> Iterator[Outcome]:
    """Outcomes of one configuration, each measured when it is asked for."""
    config = resolve(replace(RunConfig(), **BASE, repeats=repeats, **flags)).config
    argv = [*argv_of(BASE | flags), "--quiet"]
    return session.run(config, OutputConfig(results=results, quiet=True), argv, session.SILENT)


def argv_of(flags: dict[str, Any]) -> list[str]:
    """As on the command line."""
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def published(flags: dict[str, Any]) -> str:
    """The flags in one text, files of this folder as one names them from the checkout."""
    return " ".join(argv_of(flags)).replace(f"{Path(__file__).parent}/", "experiments/")


def middle(values: Iterable[float | None]) -> float | None:
    """Median of what is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def reads(outcome: Outcome) -> str:
    """Samples fetched in the last epoch, by rank."""
    return " ".join(str(report.row.reads) for report in outcome.reports[-BASE["nproc"] :])

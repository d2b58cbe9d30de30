"""What does a shuffled stream of indices cost a rank: time to the first, time for each, memory?

Hypothesis: ``DistributedSampler`` takes 48 bytes of memory and some 150 ns for each sample of the dataset, on
every rank, before it gives out the first index. The keyed permutation takes at most 15 ns for each index that it
generates in chunks, gives the first one of 10^9 in less than a millisecond, and its peak is the same at 10^6 and
10^12 samples, but for what ints beyond 2^30 are wider.

How to read the answer: each row is one stream; every repetition of each figure is a process of its own, all
streams in turn, and times and bytes are never measured in the same process. Figures are medians, ``low`` and
``high`` their 95 % bootstrap intervals.

- ``form``: what an item is. ``ints`` and ``batches`` (of 64) are what one rank of four is given; ``chunks`` are
  the bare permutation, 2^15 positions at a time, the whole order, and a first index comes with its whole chunk.
- ``ns_per_index`` is for each index that the rank is given, ``ns_per_sample`` the same work for each sample of
  the dataset: a quarter of it on one rank of four. ``DistributedSampler`` shuffles all samples for the quarter
  that it gives out, so the 150 ns are in ``ns_per_sample``.
- ``traced_peak_bytes`` is tracemalloc's peak, which knows no torch tensors (8 of the 48 bytes);
  ``rss_peak_bytes`` the growth of resident memory at its peak, and ``bytes_per_sample`` that over n. Tracing
  5 * 10^7 ints takes 8 GiB for half a minute.
- At 10^9 and 10^12 samples ``drawn`` indices are drawn, the same number from each of ``starts`` places of the
  order, and ``first_index_s`` is of the slowest of these.

    python experiments/index_stream.py [--full] [--repetitions N] [--only TEXT]
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import streams
from commandline import span
from publishing import publish
from shardlab.index.permutation import BLOCK
from shardlab.intervals import Median
from streams import BATCH, Draw, Stream, grown_bytes, in_fresh_process, seconds, traced_bytes

WHOLE = (10**6, 10**7, 5 * 10**7)
PARTS = (10**9, 10**12)  # keyed alone
DRAWN_AT_A_START = 1 << 20
LARGE = 5 * 10**7  # from here on a whole stream takes seconds and gigabytes
NS_PER_INDEX, FIRST_INDEX_S = 15.0, 1e-3  # targets


@dataclass(frozen=True)
class Case:
    """One stream. ``unit``: indices in an item."""

    sampler: str
    form: str
    world_size: int
    stream: Stream
    unit: int
    n: int

    @property
    def is_whole(self) -> bool:
        """Drawn from its front to its end."""
        return self.n in WHOLE

    @property
    def draw(self) -> Draw:
        """What is drawn of it."""
        if self.is_whole:
            return Draw(self.stream, self.n, self.world_size)
        starts = tuple(self.n * eighths // 8 for eighths in (0, 3, 5, 7))
        return Draw(self.stream, self.n, self.world_size, starts, DRAWN_AT_A_START // self.unit)

    @property
    def drawn(self) -> int:
        """Indices that the rank is given; the repeats that fill its last batch are not counted."""
        if self.is_whole:
            return -(-self.n // self.world_size)
        return DRAWN_AT_A_START * len(self.draw.starts)

    def __str__(self) -> str:
        return f"{self.sampler} {self.form} {self.n:.0e}"


FORMS = [
    ("DistributedSampler", "ints", 4, streams.distributed_ints, 1),
    ("keyed", "ints", 4, streams.keyed_ints, 1),
    ("keyed", "batches", 4, streams.keyed_batches, BATCH),
    ("keyed", "chunks", 1, streams.keyed_chunks, BLOCK),
]
CASES = [
    Case(*form, n=n) for n in WHOLE + PARTS for form in FORMS if n in WHOLE or form[0] != "DistributedSampler"
]


@dataclass(frozen=True)
class Row:
    """One stream. A target is empty where none was set; the growth of memory where the kernel does not tell."""

    sampler: str
    form: str
    n: int
    world_size: int
    drawn: int
    starts: int
    repetitions: int
    first_index_s: float
    first_index_low_s: float
    first_index_high_s: float
    ns_per_index: float
    ns_per_index_low: float
    ns_per_index_high: float
    ns_per_sample: float
    traced_peak_bytes: int
    rss_repetitions: int
    rss_peak_bytes: float | None
    rss_peak_low_bytes: float | None
    rss_peak_high_bytes: float | None
    bytes_per_sample: float | None
    target_ns_per_index: float | None
    target_first_index_s: float | None


Figures = dict[Callable[[Draw], Any], list[Any]]


def main() -> None:
    """Measure, print, write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="25 repetitions instead of 15, 5 of the largest")
    parser.add_argument("--repetitions", type=int, help="this many, of everything; not published")
    parser.add_argument("--only", default="", help="streams so named ('keyed ints 1e+06'); not published")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in str(case)]
    rows = [row_of(case, figures) for case, figures in measured(cases, options.full, options.repetitions)]
    for row in rows:
        print(line(row))
    for text in memory_lines(rows):
        print(text)
    if not options.only and not options.repetitions:
        publish("index_stream.csv", rows)


def measured(cases: Sequence[Case], full: bool, fixed: int | None) -> Iterator[tuple[Case, Figures]]:
    """All figures of each case, repetition by repetition, so that a slow minute meets all of them."""
    found: dict[Case, Figures] = {case: defaultdict(list) for case in cases}
    for repetition in range(fixed or 25):
        for case in cases:
            for measure in (seconds, traced_bytes, grown_bytes):
                if repetition < (fixed or repetitions(case, measure, full)):
                    found[case][measure].append(in_fresh_process(measure, case.draw))
    yield from found.items()


def repetitions(case: Case, measure: Callable[[Draw], Any], full: bool) -> int:
    """How often one figure is measured. tracemalloc counts the same each time, and takes ten times as long."""
    if measure is traced_bytes:
        return 1
    if measure is grown_bytes or (case.is_whole and case.n >= LARGE):
        return 5 if full else 3
    return 25 if full else 15


def row_of(case: Case, figures: Figures) -> Row:
    """The medians of one case."""
    first = Median.of([first for first, _ in figures[seconds]])
    each = Median.of([total / case.drawn * 1e9 for _, total in figures[seconds]])
    grown = None if None in figures[grown_bytes] else Median.of(figures[grown_bytes])
    return Row(
        case.sampler, case.form, case.n, case.world_size, case.drawn, len(case.draw.starts),
        len(figures[seconds]), first.value, first.low, first.high,
        each.value, each.low, each.high, each.value / case.world_size,
        figures[traced_bytes][0], len(figures[grown_bytes]),
        *(astuple(grown) if grown else (None, None, None)), grown.value / case.n if grown else None,
        NS_PER_INDEX if case.form == "chunks" else None,
        FIRST_INDEX_S if case.n == 10**9 else None,
    )  # fmt: skip


def line(row: Row) -> str:
    """A row for the screen, with its targets."""
    first = f"first {row.first_index_s * 1e3:9.3f} ms" + (" (target 1)" if row.target_first_index_s else "")
    each = f"{row.ns_per_index:7.2f}{span(row.ns_per_index_low, row.ns_per_index_high)} ns/index"
    each += " (target 15)" if row.target_ns_per_index else ""
    peak = "unknown" if row.rss_peak_bytes is None else f"{row.rss_peak_bytes / 2**20:.1f}"
    return (
        f"{row.sampler:18} {row.form:7} {row.n:.0e}  {first:29}  {each:44} {row.ns_per_sample:7.2f} ns/sample  "
        f"peak MiB traced {row.traced_peak_bytes / 2**20:.1f}, RSS {peak}"
    )


def memory_lines(rows: Sequence[Row]) -> Iterator[str]:
    """The peak of each keyed form at the most samples over that at the fewest."""
    for form in ("ints", "batches", "chunks"):
        keyed = [row for row in rows if row.sampler == "keyed" and row.form == form]
        if len(keyed) > 1:
            few, many = keyed[0], keyed[-1]
            ratio = many.traced_peak_bytes / few.traced_peak_bytes
            yield f"keyed {form}: traced peak at {many.n:.0e} over that at {few.n:.0e}: {ratio:.2f} (target 1)"


if __name__ == "__main__":
    main()

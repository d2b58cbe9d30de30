"""How fast does a batch cross a process boundary, and what does it cost the processors?

Hypothesis: what a DataLoader's worker returns as a list, as bytes or as an array is pickled through a pipe and copied
several times; a tensor lies in shared memory, and of large ones little but the name is sent, some four times as fast
as bytes, but of small ones the name costs more than the bytes. A ring in shared memory that is there already beats
both: by five or six times for large bytes and arrays, and hardly for large tensors.

How to read the answer: a row is one form at one size, every repetition in fresh processes, all in turn; a list is of
numbers, each for eight bytes. Rates are of one sender and one receiver that reads every byte, ``cpu_s_per_gib`` the
processor seconds of both. ``ring_over`` is the ring's rate over this one's, round by round, ``low`` and ``high`` its
95 % bootstrap interval (none of fewer than five rounds); ``over_bytes`` is this one's over that of bytes.
``published_over_bytes`` is what the source has for the same two forms at 32 MiB a batch. ``published`` is what a ring
of the source's own ("arena"), which is another one, reaches there over the same form; ``agrees`` is about
``ring_over``. Takes about 5 minutes.

    python experiments/transport.py [--full] [--rounds N] [--only TEXT]                  (--full: nine rounds)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import fresh
from commandline import options, span
from field import NOTHING, Published, agreement
from publishing import publish
from shardlab.intervals import Median, Ratio

ROUNDS, MORE_ROUNDS = 5, 9
SIZES = {"8 KiB": 8 << 10, "1 MiB": 1 << 20, "32 MiB": 32 << 20}
FORMS = ("list", "bytes", "ndarray", "tensor", "ring")
SPDL = "SPDL examples/benchmark_arena_transport.py, https://github.com/facebookresearch/spdl"
MB_PER_S = {"bytes": (719, 3760), "ndarray": (647, 3767), "tensor": (2899, 3116)}  # there: stock, arena; at 32 MiB
PUBLISHED = {form: Published(SPDL, arena / stock) for form, (stock, arena) in MB_PER_S.items()}
OVER_BYTES = {form: MB_PER_S[form][0] / MB_PER_S["bytes"][0] for form in ("ndarray", "tensor")}


@dataclass(frozen=True)
class Row:
    """One form at one size."""

    name: str
    form: str
    batch_bytes: int
    rounds: int
    bytes_per_s: float
    bytes_per_s_low: float | None
    bytes_per_s_high: float | None
    cpu_s_per_gib: float
    ring_over: float
    low: float | None
    high: float | None
    published: float | None
    over_bytes: float
    published_over_bytes: float | None
    source: str
    agrees: str


Found = dict[str, list[dict[str, float]]]
"""What was measured at one size, by form."""


def main() -> None:
    """Size by size, all forms in turn."""
    given = options(__doc__, "nine rounds", ROUNDS)
    rounds = given.rounds or (MORE_ROUNDS if given.full else ROUNDS)
    rows: list[Row] = []
    for size in SIZES:
        if given.only in size:
            rows += rows_of(size, measured(size, rounds))
            print("\n".join(line(row) for row in rows if row.name.endswith(f", {size}")), flush=True)
            publish("transport.csv", rows, key="name")
    publish("transport.csv", rows, key="name" if given.only else None)
    picture()


def measured(size: str, rounds: int) -> Found:
    """All forms in turn."""
    found: Found = {form: [] for form in FORMS}
    for _ in range(rounds):
        for form in FORMS:
            found[form].append(fresh.measured("sent.py", form, SIZES[size]))
    return found


def rows_of(size: str, found: Found) -> Iterator[Row]:
    """A row for each form."""
    rates = {form: [each["bytes_per_s"] for each in runs] for form, runs in found.items()}
    for form in FORMS:
        rate, ring = Median.of(rates[form]), Ratio.of(rates["ring"], rates[form])
        large = SIZES[size] == SIZES["32 MiB"]
        said = PUBLISHED.get(form, NOTHING) if large else NOTHING
        yield Row(
            f"{form}, {size}", form, SIZES[size], len(found[form]), rate.value, rate.low, rate.high,
            statistics.median(each["cpu_s_per_gib"] for each in found[form]),
            ring.value, ring.low, ring.high, said.ratio,
            Ratio.of(rates[form], rates["bytes"]).value, OVER_BYTES.get(form) if large else None,
            said.source, agreement(ring.value, said),
        )  # fmt: skip


def line(row: Row) -> str:
    """A row for the screen."""
    said = "" if row.published is None else f"  published {row.published:.2f}: {row.agrees}"
    ring = f"ring {row.ring_over:7.2f} x{span(row.low, row.high)}"
    rate = f"{row.bytes_per_s / 1e6:9,.0f} MB/s  {row.cpu_s_per_gib:7.2f} CPU s/GiB"
    return f"{row.name:16} {rate}  {ring}  {row.over_bytes:6.2f} x bytes{said}"


def picture() -> None:
    """Rates and processor seconds by size, a point for each form."""
    import figure

    frame = figure.table("transport.csv")
    frame["size"] = frame["name"].str.partition(", ")[2]
    frame["rate"], frame["low"], frame["high"] = (
        frame[name] / 1e6 for name in ("bytes_per_s", "bytes_per_s_low", "bytes_per_s_high")
    )
    drawn, (left, right) = figure.panels(1, 2)
    figure.points(left, frame, "size", "rate", "form")
    figure.points(right, frame, "size", "cpu_s_per_gib", "form", ("cpu_s_per_gib", "cpu_s_per_gib"))
    figure.logarithmic(left, "MB/s, every byte read")
    figure.logarithmic(right, "processor seconds per GiB")
    left.set_ylabel("bytes of a batch")
    right.set_yticklabels([])
    drawn.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    figure.save(drawn, "transport.svg")


if __name__ == "__main__":
    main()

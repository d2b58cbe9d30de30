"""From the rows of ``runs.csv`` to where each configuration stands: medians with intervals, ratios, the audit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardlab import choosing
from shardlab.intervals import Median, Ratio

Row = Mapping[str, str]


@dataclass(frozen=True)
class Standing:
    """One configuration; a row of ``compare.csv``. Rates are distinct samples/s, figures medians over its runs.

    ``ratio`` is its samples/s over those of ``baseline``, from runs of the same turn where there are some. The
    interval of ``copies`` is that of one run, which the memory of a process itself leaves.
    """

    comparison: str
    name: str
    sampler: str
    store: str
    workers: int
    dataset: str
    world_size: int | None
    runs: int
    status: str
    baseline: str | None
    samples_per_s: float | None
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    copies: float | None
    copies_low: float | None
    copies_high: float | None
    duplicate_bytes: float | None
    pss_peak_bytes: float | None
    stall_ratio: float | None
    cpu_s_per_1k_samples: float | None
    first_batch_s: float | None
    delivered: int | None
    duplicates: int | None
    missing: int | None
    reason: str

    @property
    def is_baseline(self) -> bool:
        """Whether others are held against it, and it against nothing."""
        return self.baseline == self.name

    @property
    def is_one_copy(self) -> bool:
        """Whether the node holds one copy, or cannot be told from one that does."""
        return choosing.is_one_copy(self)


def standings(
    groups: Mapping[str, Sequence[Row]], against: Mapping[str, str], comparison: str = ""
) -> list[Standing]:
    """Where each group of runs stands, best first: those of one copy before the others, then by speed.

    ``against`` has the baseline of each; what is not in it has no ratio.
    """
    found = []
    for name, rows in groups.items():
        baseline = against.get(name)
        times = ratio(rows, groups[baseline]) if baseline is not None else None
        found.append(_standing(name, rows, baseline, times, comparison))
    return sorted(found, key=lambda each: (each.status != "ok", not each.is_one_copy, -(each.samples_per_s or 0.0)))


def ratio(a: Sequence[Row], b: Sequence[Row]) -> Ratio | None:
    """Samples/s of ``a`` over those of ``b``: pair by pair where runs of both belong to the same turn."""
    mine, theirs = _speeds(a), _speeds(b)
    turns = [turn for turn in mine if turn in theirs and turn[0]]
    if turns:
        return Ratio.of([mine[turn] for turn in turns], [theirs[turn] for turn in turns])
    return Ratio.unpaired([*mine.values()], [*theirs.values()]) if mine and theirs else None


def _speeds(rows: Sequence[Row]) -> dict[tuple[str, str, str], float]:
    """Samples/s of the runs that were well, by comparison and turn; by run where they are of no comparison."""
    return {
        (row["comparison"], row["repeat"], "" if row["comparison"] else row["run_id"]): float(row["samples_per_s"])
        for row in rows
        if row["samples_per_s"] and row["status"] == "ok"
    }


def _standing(
    name: str, rows: Sequence[Row], baseline: str | None, times: Ratio | None, comparison: str
) -> Standing:
    first, ended, status = rows[0], [row for row in rows if row["status"] in ("ok", "audit")], worst(rows)
    speeds = [*_speeds(rows).values()]
    speed = Median.of(speeds) if speeds else None
    return Standing(
        comparison=comparison,
        name=name,
        sampler=first["sampler"],
        store=first["store"],
        workers=int(first["workers"]),
        dataset=first["dataset"],
        world_size=_most(rows, "world_size"),
        runs=len(ended),
        status=status,
        baseline=baseline,
        samples_per_s=speed.value if speed else None,
        samples_per_s_low=speed.low if speed else None,
        samples_per_s_high=speed.high if speed else None,
        ratio=times.value if times else None,
        ratio_low=times.low if times else None,
        ratio_high=times.high if times else None,
        copies=_median(ended, "copies"),
        copies_low=_median(ended, "copies_low"),
        copies_high=_median(ended, "copies_high"),
        duplicate_bytes=_median(ended, "duplicate_bytes"),
        pss_peak_bytes=_median(ended, "pss_peak_bytes"),
        stall_ratio=_median(ended, "stall_ratio"),
        cpu_s_per_1k_samples=_median(ended, "cpu_s_per_1k_samples"),
        first_batch_s=_median(ended, "first_batch_s"),
        delivered=_most(ended, "delivered"),
        duplicates=_most(ended, "duplicates"),
        missing=_most(ended, "missing"),
        reason=next(row["reason"] for row in rows if row["status"] == status),
    )


def worst(rows: Sequence[Row]) -> str:
    """``failed`` before ``audit`` before ``ok``."""
    return max((row["status"] for row in rows), key=lambda status: ("ok", "audit", "failed").index(status))


def _median(rows: Sequence[Row], column: str) -> float | None:
    return _summed_up(rows, column, statistics.median)


def _most(rows: Sequence[Row], column: str) -> int | None:
    value = _summed_up(rows, column, max)
    return None if value is None else int(value)


def _summed_up(rows: Sequence[Row], column: str, of: Callable[[list[float]], float]) -> float | None:
    known = [float(row[column]) for row in rows if row[column]]
    return of(known) if known else None

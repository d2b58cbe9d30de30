"""What three runs of a rank say of its stall: on a batch that is there, on a warm file, on a cold one."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardlab.intervals import Median

COLD_RATIO, WARM_RATIO = 0.01, 0.999  # of the file's bytes in the page cache: at most, at least
WITHIN = 0.1  # a prediction agrees
RULE_S = 50e-6  # tf.data's rule of thumb: a longer wait for a batch says that the input holds up the rest


@dataclass(frozen=True)
class Case:
    """``state``: synth, warm or cold."""

    state: str
    workers: int
    compute_ms: int

    def __str__(self) -> str:
        beside = "" if self.state == "synth" else f", {self.workers} workers"
        return f"{self.state}{beside}, {self.compute_ms} ms"


@dataclass(frozen=True)
class Run:
    """One measurement: what the rank said, and the part of the file in the page cache before and after it."""

    samples_per_s: float
    stall_ratio: float | None
    wait_p50_s: float
    read_bytes: int
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class Row:
    """One case. A prediction is None where nothing computes, or where its parts were not measured.

    ``file_bytes`` is None where no file is read.
    """

    name: str
    state: str
    workers: int
    compute_s: float
    prepare_s: float
    rounds: int
    samples_per_s: float
    low: float | None
    high: float | None
    wait_p50_s: float
    over_50us: bool
    stall_ratio: float | None
    predicted_stall_ratio: float | None
    agrees: str
    prep_stall_ratio: float | None
    fetch_stall_ratio: float | None
    cache_state: str
    resident_before_ratio: float | None
    resident_after_ratio: float | None
    read_bytes: int
    file_bytes: int | None


Found = dict[Case, list[Run]]
"""All runs of each case."""


def rows_of(found: Found, prepare_s: float, file_bytes: int) -> Iterator[Row]:
    """A row for each case."""
    rates = {case: Median.of([run.samples_per_s for run in runs]) for case, runs in found.items()}
    for case, runs in found.items():
        rate, before = rates[case], [run.before for run in runs]
        wait = statistics.median(run.wait_p50_s for run in runs)
        measured = None if case.compute_ms == 0 else middle([run.stall_ratio for run in runs])
        predicted = foretold(rates, case)
        yield Row(
            str(case), case.state, case.workers, case.compute_ms / 1e3, prepare_s, len(runs),
            rate.value, rate.low, rate.high, wait, wait > RULE_S,
            measured, predicted, agreement(measured, predicted),
            lost(rates, replace(case, state="synth", workers=0), replace(case, state="warm")),
            lost(rates, replace(case, state="warm"), replace(case, state="cold")) if case.state == "cold" else None,
            cache_state(case.state, before), middle(before), middle([run.after for run in runs]),
            round(statistics.median(run.read_bytes for run in runs)),
            None if case.state == "synth" else file_bytes,
        )  # fmt: skip


def foretold(rates: dict[Case, Median], case: Case) -> float | None:
    """The stall that follows from the rate of loading alone and that of computing alone."""
    alone, synth = replace(case, compute_ms=0), replace(case, state="synth", workers=0)
    if case.state == "synth" or alone not in rates or synth not in rates:
        return None
    return predicted_stall(rates[alone].value, rates[synth].value, overlapped=case.workers > 0)


def predicted_stall(loader_per_s: float, compute_per_s: float, *, overlapped: bool) -> float:
    """The part of its time that a rank waits, where both rates are those of each alone.

    >>> predicted_stall(500.0, 1000.0, overlapped=True), predicted_stall(1000.0, 1000.0, overlapped=False)
    (0.5, 0.5)
    """
    if overlapped:
        return max(0.0, 1 - loader_per_s / compute_per_s)
    return (1 / loader_per_s) / (1 / loader_per_s + 1 / compute_per_s)


def lost(rates: dict[Case, Median], quick: Case, slow: Case) -> float | None:
    """The part of the time of ``slow`` that ``quick`` does not take; below 0 is noise. None where not measured."""
    if quick not in rates or slow not in rates:
        return None
    return 1 - rates[slow].value / rates[quick].value


def agreement(measured: float | None, predicted: float | None) -> str:
    """``yes``, ``no``, or empty where one of the two is not known."""
    if measured is None or predicted is None:
        return ""
    return "yes" if abs(measured - predicted) <= WITHIN else "no"


def cache_state(wanted: str, before: Sequence[float | None]) -> str:
    """What the page cache held of the file before the runs, whatever was asked of it; empty where there is no file.

    >>> cache_state("cold", [0.0, 0.4]), cache_state("cold", [0.0, 0.004]), cache_state("warm", [None])
    ('cold_requested', 'cold_verified', 'unknown')
    """
    if wanted == "synth":
        return ""
    known = [ratio for ratio in before if ratio is not None]
    if not known or len(known) < len(before):
        return "unknown"
    if wanted == "cold":
        return "cold_verified" if max(known) <= COLD_RATIO else "cold_requested"
    return "warm" if min(known) >= WARM_RATIO else "warm_requested"


def middle(values: Sequence[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None

"""Which one change would make a job fit, by the model alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardlab.config import RunConfig, flag
from shardlab.predicting.model import Forecast
from shardlab.predicting.parts import Interval

TURNED_DOWN = ("prefetch_factor", "workers", "batch_size", "nproc")
"""What can be turned down, the cheapest change first."""


@dataclass(frozen=True)
class Change:
    """A flag with another value, and what a node then needs in bytes."""

    flags: str
    needs: Interval


def verdict_of(needs: Interval, limit_bytes: float) -> str:
    """``fits``, ``may not fit`` or ``does not fit``: an interval on one side of the limit, or astride it.

    >>> verdict_of(Interval(5.0, 4.0, 6.0), 6.0), verdict_of(Interval(5.0, 4.0, 6.0), 5.5)
    ('fits', 'may not fit')
    """
    if needs.high <= limit_bytes:
        return "fits"
    return "does not fit" if needs.low > limit_bytes else "may not fit"


def least_of(runs: Sequence[RunConfig]) -> dict[str, int]:
    """Down to which value of each flag the small runs tell what a job needs: the least that one of them had.

    A batch counts by its bytes alone, so that few batches in flight speak for small ones.
    """
    least = {name: min(getattr(run, name) for run in runs) for name in TURNED_DOWN}
    return least | {"batch_size": 1}


def changes(
    config: RunConfig,
    forecast: Callable[[RunConfig], Forecast],
    limit_bytes: float,
    least: dict[str, int],
    idle: set[str] | None = None,
) -> list[Change]:
    """For each flag the smallest change of it alone with which the whole interval fits; none where no value does.

    None goes below ``least``, see :func:`least_of`. ``idle`` are flags without effect on the data path.
    """
    found = []
    for name in TURNED_DOWN:
        if name in (idle or set()) or (name == "prefetch_factor" and not config.workers):
            continue
        for value in _smaller(getattr(config, name), least[name], halve=name == "batch_size"):
            less: dict[str, Any] = {name: value}
            needs = forecast(replace(config, **less)).needs
            if verdict_of(needs, limit_bytes) == "fits":
                found.append(Change(f"{flag(name)} {value}", needs))
                break
    return found


def _smaller(value: int, least: int, *, halve: bool) -> list[int]:
    """Smaller values, the nearest first.

    >>> _smaller(4, 1, halve=False), _smaller(32, 1, halve=True)
    ([3, 2, 1], [16, 8, 4, 2, 1])
    """
    if not halve:
        return list(range(value - 1, least - 1, -1))
    return [value >> power for power in range(1, value.bit_length()) if value >> power >= least]

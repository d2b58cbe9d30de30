"""Medians of repeated measurements and ratios between them, with how far they may be trusted.

Intervals are 95 % percentile bootstrap intervals (Efron 1979) of the median, from 2000 draws with a fixed seed: the
same values give the same interval. Of fewer than FEWEST values there is none: the smallest and the largest of four
hold the median in 7 cases of 8 only, and no method that knows nothing else does better.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
FEWEST = 5


@dataclass(frozen=True)
class Median:
    """The median of ``number`` values; ``low`` and ``high`` bound it, None where there are too few."""

    value: float
    low: float | None
    high: float | None
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Median:
        """The median of all values, and :func:`interval`."""
        low, high = interval(values)
        return cls(statistics.median(values), low, high, len(values))


@dataclass(frozen=True)
class Ratio:
    """How many times ``a`` is ``b``: a median with its bounds, and of how many pairs.

    Ratios are averaged as logarithms, so that b over a is 1 over it, whichever way one asks. Unpaired, ``pairs`` are
    the values of the side with fewer.
    """

    value: float
    low: float | None
    high: float | None
    pairs: int
    paired: bool

    @classmethod
    def of(cls, a: Sequence[float], b: Sequence[float]) -> Ratio:
        """The median of a/b, pair by pair: each pair ran in turn, so what slowed both falls out.

        >>> Ratio.of([2.0, 4.0, 9.0], [1.0, 2.0, 3.0]).value
        2.0
        """
        logs = [math.log(x / y) for x, y in zip(a, b, strict=True)]
        return _ratio(statistics.median(logs), interval(logs), len(logs), paired=True)

    @classmethod
    def unpaired(cls, a: Sequence[float], b: Sequence[float]) -> Ratio:
        """The median of all of ``a`` over that of all of ``b``, each drawn again on its own."""
        value = math.log(statistics.median(a) / statistics.median(b))
        number = min(len(a), len(b))
        if number < FEWEST:
            return _ratio(value, (None, None), number, paired=False)
        low, high = np.percentile(np.log(_medians(a, seed=0) / _medians(b, seed=1)), [2.5, 97.5])
        return _ratio(value, (float(low), float(high)), number, paired=False)


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Bounds of the median of ``values``; none of too few."""
    if len(values) < FEWEST:
        return None, None
    low, high = np.percentile(_medians(values, seed=0), [2.5, 97.5])
    return float(low), float(high)


def _ratio(
    log: float, bounds: tuple[float, float] | tuple[None, None], number: int, *, paired: bool
) -> Ratio:
    low, high = (None if bound is None else _exp(bound) for bound in bounds)
    return Ratio(_exp(log), low, high, number, paired)


def _exp(log: float) -> float:
    """Rounded by less than anything that is measured, so that the logarithm of 2 comes back as 2."""
    return float(f"{math.exp(log):.12g}")


def _medians(values: Sequence[float], seed: int) -> NDArray[np.float64]:
    draws = np.random.default_rng(seed).choice(np.asarray(values, dtype=np.float64), (DRAWS, len(values)))
    medians: NDArray[np.float64] = np.median(draws, axis=1)  # (draws,)
    return medians

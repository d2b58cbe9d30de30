"""Medians of repeated measurements, with how far they may be trusted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Median:
    """A median; ``low`` and ``high`` bound it with 95 % confidence."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Median:
        """The median of all values, and :func:`interval`."""
        return cls(statistics.median(values), *interval(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median (Efron 1979)."""
    draws = np.median(np.random.default_rng(0).choice(values, (2000, len(values))), axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)

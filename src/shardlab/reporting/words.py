"""Figures as text: one way to write a number wherever the page shows it; unknown is a dash, never a zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from shardlab.words import bounded, many, mib, reasons, times

__all__ = [
    "Row", "between", "bounded", "cell", "listed", "many", "mib", "number", "percent", "reasons", "rows_of",
    "times",
]  # fmt: skip

Row = Mapping[str, Any]


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a frame as mappings with ``None`` where a cell is empty."""
    return [
        {str(name): None if pd.isna(value) else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def number(value: float | None, digits: int = 0) -> str:
    """With so many decimals and thousands apart."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A ratio as percent."""
    return "-" if value is None else f"{value:.0%}"


def between(low: float | None, high: float | None, digits: int = 0) -> str:
    """`` (low to high)``, or nothing where the two are not known or one value bounds itself."""
    if low is None or high is None or low == high:
        return ""
    return f" ({number(low, digits)} to {number(high, digits)})"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def cell(value: Any) -> str:
    """Any value of a CSV as it is read best: four significant digits, whole numbers in full.

    >>> cell(1437465.34), cell(0.0026154), cell(None), cell(256), cell("ring")
    ('1,437,465', '0.002615', '-', '256', 'ring')
    """
    if value is None or (isinstance(value, float) and value != value):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)

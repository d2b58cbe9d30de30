"""Pictures of speed: samples per second, where the seconds went, ratios against a baseline, and sweeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from shardlab.analysis.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    QUIET,
    SKY,
    VERMILLION,
    column,
    dress,
    key,
    lines_of,
    names_of,
    note,
    nothing,
    plain_log,
    spelled,
)
from shardlab.words import significant

SECONDS = {
    "wait_s": ("waiting for a batch", VERMILLION),
    "compute_s": ("computing", BLUE),
    "comm_s": ("exchanging gradients", PURPLE),
    "other_s": ("other", QUIET),
}


def throughput(ax: Axes, table: pd.DataFrame) -> Axes:
    """A bar for each row of :func:`by_configuration`, fastest on top: distinct samples/s, with its interval.

    A configuration without a figure comes last and says so, with the number of its runs that failed.
    """
    if table.empty:
        return nothing(ax, "no configuration was measured")
    table = table.sort_values("samples_per_s", ascending=False, na_position="last", kind="stable")
    places = lines_of(ax, names_of(table))
    speed, low, high = (column(table, "samples_per_s" + end) for end in ("", "_low", "_high"))
    ax.barh(places, np.nan_to_num(speed), 0.6, color=SKY)
    _intervals(ax, speed, low, high)
    for place, value, end, failed in zip(places, speed, high, column(table, "failed"), strict=True):
        lost = f"{failed:.0f} failed" if failed > 0 else ""
        said = "" if np.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
        note(ax, np.nanmax([value, end, 0.0]), place, ", ".join(filter(None, (said, lost))) or "not known")
    ax.set_xlim(0, 1.22 * np.nanmax([*speed, *high, 1e-9]))
    ax.set_xlabel("distinct samples/s" + (", median and 95 % interval" if np.isfinite(low).any() else ""))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.locator_params(axis="x", nbins=6)
    return dress(ax, across="")


def _intervals(ax: Axes, middle: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> None:
    known = np.isfinite(middle) & np.isfinite(low) & np.isfinite(high)
    if known.any():
        sides = np.clip([(middle - low)[known], (high - middle)[known]], 0, None)
        ax.errorbar(middle[known], np.flatnonzero(known), xerr=sides, fmt="none", ecolor=INK, capsize=3)


def seconds(ax: Axes, ranks: pd.DataFrame, run_id: str) -> Axes:
    """A bar for each rank of a run, from ``ranks.csv``: seconds waiting, computing, exchanging and other, stacked.

    Summed over the timed epochs; a part that no rank has is left out.
    """
    rows = ranks[ranks["run_id"] == run_id]
    if rows.empty:
        return nothing(ax, f"no rank of run {run_id} ended an epoch")
    sums = rows.groupby("rank")[[name for name in SECONDS if name in rows]].sum(min_count=1)
    places = lines_of(ax, [f"rank {rank}" for rank in sums.index])
    start = np.zeros(len(sums))
    for name, (said, colour) in SECONDS.items():
        length = np.nan_to_num(column(sums, name))
        if length.any():
            ax.barh(places, length, 0.6, left=start, color=colour, label=said)
        start = start + length
    ax.set_xlim(0, 1.05 * max(float(start.max()), 1e-9))
    ax.set_xlabel("seconds, all timed epochs")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.locator_params(axis="x", nbins=7)
    key(ax)
    return dress(ax)


def ratios(ax: Axes, frame: pd.DataFrame) -> Axes:
    """A point with its interval for each row of :func:`against`, on a log axis, with a line where both are equal.

    Columns ``ratio low high``, a name (``label`` or ``name``), and ``target`` where one was set. Orange says that the
    interval reaches below 1, and vermillion that it lies below. A row without a ratio says so.
    """
    if frame.empty:
        return nothing(ax, "nothing to compare with the baseline")
    places = lines_of(ax, names_of(frame))
    middle, low, high, target = (column(frame, name) for name in ("ratio", "low", "high", "target"))
    reach = np.where(np.isnan(high), middle, high)
    for said, colour, chosen in _verdicts(middle, low, high):
        if chosen.any():
            sides = [(middle - low)[chosen], (high - middle)[chosen]]
            ax.errorbar(
                middle[chosen], np.flatnonzero(chosen), xerr=np.clip(sides, 0, None), fmt="o", color=colour,
                markersize=6, linewidth=1.8, capsize=3, label=said,
            )  # fmt: skip
    if np.isfinite(target).any():
        ax.plot(target, places, "d", markersize=7, markerfacecolor="none", color=INK, label="target")
    ax.axvline(1, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
    for place, value, end, aim in zip(places, middle, reach, target, strict=True):
        if value > 0:
            note(ax, np.nanmax([end, aim]), place, significant(value))
        else:
            said = "not known" if np.isnan(value) else f"{value:g}"  # which a log axis has no place for
            note(ax, 0.0, place, said, xycoords=("axes fraction", "data"))
    ends = np.concatenate([low, reach, middle, target, [1.0]])
    ends = ends[np.isfinite(ends) & (ends > 0)]
    ax.set_xlim(ends.min() / 1.15, ends.max() * (ends.max() / ends.min()) ** 0.14 * 1.1)
    plain_log(ax, "x")
    ax.set_xlabel("times the baseline, median" + (" and 95 % interval" if np.isfinite(low).any() else ""))
    key(ax)
    return dress(ax)


def _verdicts(
    middle: NDArray[Any], low: NDArray[Any], high: NDArray[Any]
) -> list[tuple[str, str, NDArray[Any]]]:
    """What is said of a row, its colour, and which rows they are; without bounds nothing is clear."""
    known = middle > 0
    above, below = known & (low > 1), known & (high < 1)
    return [
        ("higher", GREEN, above),
        ("not clear of 1", ORANGE, known & ~above & ~below),
        ("lower", VERMILLION, below),
    ]


def curve(ax: Axes, frame: pd.DataFrame, x: str, y: str, by: str, log: str = "") -> Axes:
    """A line of ``y`` over ``x`` for each value of ``by``, with the band between ``y_low`` and ``y_high``.

    The bounds may also be called ``low`` and ``high``; without them there is no band. ``log`` names the axes with a
    log scale: ``x``, ``y`` or ``xy``. Text as ``x`` keeps the order of the rows.
    """
    if frame.empty:
        return nothing(ax, "nothing was measured")
    for number, (name, line) in enumerate(frame.groupby(by, sort=False, dropna=False)):
        colour = PALETTE[number % len(PALETTE)]
        line = line.sort_values(x) if pd.api.types.is_numeric_dtype(line[x]) else line
        ax.plot(line[x], column(line, y), "-o", color=colour, markersize=4, linewidth=1.8, label=str(name))
        bounds = (f"{y}_low", f"{y}_high") if f"{y}_low" in line else ("low", "high")
        low, high = (column(line, end) for end in bounds)
        ax.fill_between(line[x], low, high, color=colour, alpha=0.22, linewidth=0)
    plain_log(ax, log)
    ax.set_xlabel(spelled(x))
    ax.set_ylabel(spelled(y))
    key(ax)
    return dress(ax, across="y")

"""Pictures of memory: whose copies a node holds, and what each process held over time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from shardlab.analysis.figures.style import (
    BLUE,
    GREEN,
    INK,
    PALETTE,
    QUIET,
    VERMILLION,
    column,
    dress,
    key,
    lines_of,
    names_of,
    note,
    nothing,
)

MIB = 2**20
POINTS = 400  # of a line: more are not seen
PARTS = {
    "data_private_bytes": ("private", VERMILLION),
    "data_shared_bytes": ("shared memory", BLUE),
    "data_file_bytes": ("page cache", GREEN),
}


def copies_bars(ax: Axes, nodes: pd.DataFrame) -> Axes:
    """A bar for each row of ``nodes.csv``: what of the dataset the node holds, by kind of memory, in copies of it.

    Bytes over ``dataset_bytes``: ``data_private_bytes``, ``data_shared_bytes``, ``data_file_bytes``, and behind them
    ``inflight_bytes``, only outlined because batches are no copies. The point with a whisker is ``copies`` with
    its interval. Where only ``copies`` is known the bar has no kind; where not even that, the row says so. A
    column ``label`` names the bars.
    """
    if nodes.empty:
        return nothing(ax, "no node was measured")
    places = lines_of(ax, names_of(nodes))
    size, copies = column(nodes, "dataset_bytes"), column(nodes, "copies")
    size = np.where(size > 0, size, np.nan)  # of nothing there are no copies
    ends = _stack(ax, nodes, size, copies)
    ax.axvline(1, color=INK, linestyle=(0, (4, 3)), linewidth=1.2, label="one copy")
    _whiskers(ax, nodes, copies)
    for place, end, value, high in zip(places, ends, copies, column(nodes, "copies_high"), strict=True):
        reach = np.nanmax([end, 0.0, value, high])
        note(ax, reach, place, "not known" if np.isnan(value) else f"{value:.2f}")
    ax.set_xlim(0, 1.12 * max(1.1, np.nanmax([*ends, *copies, *column(nodes, "copies_high")])))
    ax.set_xlabel("copies of the dataset on the node")
    key(ax)
    return dress(ax)


def _stack(ax: Axes, nodes: pd.DataFrame, size: Any, copies: Any) -> Any:
    """The bars; returns where they end, in copies."""
    places = np.arange(len(nodes))
    start = np.zeros(len(nodes))
    parts = {name: column(nodes, name) / size for name in PARTS}
    unsorted = np.all([np.isnan(part) for part in parts.values()], axis=0)
    for name, (said, colour) in PARTS.items():
        length = np.clip(np.nan_to_num(parts[name]), 0, None)  # a control may hold a little more
        if length.any():
            ax.barh(places, length, 0.6, left=start, color=colour, label=said)
        start = start + length
    unknown = np.where(unsorted, np.nan_to_num(copies), 0.0)
    if unknown.any():
        ax.barh(places, unknown, 0.6, left=start, color=QUIET, label="kind not known")
    start = start + unknown
    flying = np.nan_to_num(column(nodes, "inflight_bytes") / size)
    some = flying > 0
    if some.any():
        said = "in flight, no copies"
        for bar in ax.barh(places[some], flying[some], 0.6, left=start[some], label=said, facecolor="none"):
            bar.set(edgecolor=QUIET, linestyle=(0, (2, 2)), linewidth=1.2)
    return start + flying


def _whiskers(ax: Axes, nodes: pd.DataFrame, copies: Any) -> None:
    known = ~np.isnan(copies)
    if known.any():
        low, high = column(nodes, "copies_low"), column(nodes, "copies_high")
        sides = np.nan_to_num(np.clip([copies - low, high - copies], 0, None))
        ax.errorbar(
            copies[known], np.arange(len(nodes))[known], xerr=sides[:, known], fmt="o", color=INK,
            markersize=4, capsize=3, label="copies",
        )  # fmt: skip


def memory_over_time(ax: Axes, memory: pd.DataFrame, run_id: str) -> Axes:
    """Two lines of ``memory.csv`` for each process of a run, in MiB: PSS with dots, and thin its RSS.

    RSS is known at all times and counts shared pages in full in every process; PSS counts them in parts, and is
    read at barriers and in turn between them. Ranks have a colour each, their workers the same in dashes,
    readers of a ring dashes in ink; the launcher and its helpers are grey. The axis says which of both there is.
    """
    rows = memory[memory["run_id"] == run_id]
    read = [name for name in _KINDS if rows[name].notna().any()]
    if not read:
        return nothing(ax, f"no memory was recorded of run {run_id}")
    processes = [process.sort_values("t_s") for _, process in rows.groupby(["node", "pid"], dropna=False)]
    named: set[Look] = set()
    for look, process in sorted(((_look(each), each) for each in processes), key=lambda pair: pair[0]):
        lines = _lines(ax, process, look)
        if look not in named:
            lines[read[0]].set_label(look.said)
        named.add(look)
    ax.set_ylabel(" and ".join(_KINDS[name] for name in read) + ", MiB")
    ax.set_xlabel("seconds since the monitor started")
    ax.set_ylim(bottom=0)
    key(ax, length=2.4)
    return dress(ax, across="y")


_KINDS = {"pss_bytes": "PSS (dots)", "rss_bytes": "RSS (thin)"}


class Look(NamedTuple):
    """How a process is drawn; in the order in which the legend names them."""

    group: int
    rank: int
    said: str
    colour: str
    dashes: str


def _look(process: pd.DataFrame) -> Look:
    """By its last role: until it says who it is, a rank is of role ``other``."""
    named = process[process["role"] != "other"]
    role = named["role"].iloc[-1] if len(named) else "other"
    ranks = process["rank"].dropna()
    rank = int(ranks.iloc[-1]) if len(ranks) else None
    if role == "worker":
        if rank is None:
            return Look(2, 0, "readers", INK, "--")
        return Look(1, rank, f"workers of {rank}", PALETTE[rank % len(PALETTE)], "--")
    if role == "rank" and rank is not None:
        return Look(0, rank, f"rank {rank}", PALETTE[rank % len(PALETTE)], "-")
    return Look(3, 0, "launcher, helpers", QUIET, "-")


def _lines(ax: Axes, process: pd.DataFrame, look: Look) -> dict[str, Line2D]:
    """The two lines of a process, by column; the legend names neither yet."""
    rss, pss = (_thinned(process.dropna(subset=[name]), name) for name in ("rss_bytes", "pss_bytes"))
    (thin,) = ax.plot(rss["t_s"], column(rss, "rss_bytes") / MIB, linewidth=0.8, alpha=0.6)
    (thick,) = ax.plot(pss["t_s"], column(pss, "pss_bytes") / MIB, marker="o", markersize=3.5, linewidth=1.6)
    for line in (thin, thick):
        line.set(color=look.colour, linestyle=look.dashes, label="_")
    return {"rss_bytes": thin, "pss_bytes": thick}


def _thinned(process: pd.DataFrame, name: str) -> pd.DataFrame:
    """At most POINTS of its rows, in each stretch the one with the most, so that peaks stay."""
    if len(process) <= POINTS:
        return process
    stretch = np.arange(len(process)) * POINTS // len(process)
    return process.loc[process.groupby(stretch)[name].idxmax()]

"""One look for all figures: colours that colour-blind readers tell apart, one ink, one size of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from shardlab.analysis.aggregate import label

BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, YELLOW = PALETTE = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442",
)  # fmt: skip
"""Okabe and Ito 2008, without black. No two are equal, here or below, so a page may replace each by its own."""

INK = "#22262e"
"""Text, axes, whiskers and the lines that figures are read against."""

QUIET = "#868c96"
"""What is not the point: helper processes, other time, what is not known."""

RULE = "#d4d7dc"
"""Thin lines behind the data."""

TEXT_PT = 9.5  # on 7 inches; a phone shows such a figure at half its size
WIDTH_IN = 7.0
LABEL_CHARACTERS = 38


def sheet(rows: int | None = None) -> tuple[Figure, Axes]:
    """A figure of 7 inches and its axes, high enough for so many bars, else 3.5 inches."""
    height = 3.5 if rows is None else max(2.0, 1.3 + 0.46 * rows)
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    return figure, figure.add_subplot()


def dress(ax: Axes, across: str = "x") -> Axes:
    """Ink, size of text, and thin lines across the axis that is read (``x``, ``y`` or empty)."""
    ax.set_facecolor("none")
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    ax.tick_params(which="both", colors=INK, labelsize=TEXT_PT)
    for text in (ax.xaxis.label, ax.yaxis.label, ax.title, ax.xaxis.offsetText, ax.yaxis.offsetText):
        text.set(color=INK, fontsize=TEXT_PT)
    ax.set_axisbelow(True)
    if across == "x":
        ax.grid(axis="x", color=RULE, linewidth=0.8)
    elif across == "y":
        ax.grid(axis="y", color=RULE, linewidth=0.8)
    return ax


def key(ax: Axes, length: float = 1.4) -> None:
    """The legend, above the axes, where it hides nothing, with as many columns as there is room for."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        beside = max((_inches(text.get_text()) for text in ax.get_yticklabels()), default=0.0)
        around = (length + 2.2) * TEXT_PT / 72  # a handle, and the room around it
        widths = [_inches(label) + around for label in labels]
        columns = _columns(widths, WIDTH_IN - max(beside, 0.6) - 0.2)
        legend = ax.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, frameon=False,
            fontsize=TEXT_PT, labelcolor=INK, handlelength=length, columnspacing=1.2, borderaxespad=0.2,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)


def _inches(text: str) -> float:
    """About how wide a text is; most letters are a little over half as wide as they are high."""
    return max(len(line) for line in text.split("\n")) * 0.55 * TEXT_PT / 72


def _columns(widths: list[float], room: float) -> int:
    """The most columns that fit; they are filled one after the other, each as wide as its widest label."""
    for count in range(len(widths), 1, -1):
        if sum(max(column) for column in np.array_split(widths, count)) <= room:
            return count
    return 1


def note(ax: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """A few words beside the data, to the right of a point unless said."""
    placed = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    ax.annotate(text, (x, y), **{**placed, "color": INK, "fontsize": TEXT_PT, "parse_math": False, **options})


def nothing(ax: Axes, why: str) -> Axes:
    """Axes that say in words why there is nothing to draw."""
    ax.set_axis_off()
    note(ax, 0.5, 0.5, why, xytext=(0, 0), xycoords="axes fraction", ha="center")
    return ax


def lines_of(ax: Axes, names: Iterable[str]) -> list[int]:
    """A line for each name, the first on top, its name beside the axis; returns their places."""
    folded = [fold(name) for name in names]
    places = list(range(len(folded)))
    ax.set_yticks(places, folded, linespacing=1.0, parse_math=False)  # a dollar in a name is a dollar
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(places) - 0.5, -0.5)
    return places


def fold(name: str) -> str:
    """A name over several lines, broken after a comma where that is possible.

    >>> print(fold("distributed + private, on synthetic:64MiB:3x64x64"))
    distributed + private,
    on synthetic:64MiB:3x64x64
    """
    lines = [""]
    for part in name.replace(", ", ",\n").split("\n"):
        joined = f"{lines[-1]} {part}".strip()
        if len(joined) <= LABEL_CHARACTERS:
            lines[-1] = joined
        else:
            lines += textwrap.wrap(part, LABEL_CHARACTERS)
    return "\n".join(line for line in lines if line)


def names_of(frame: pd.DataFrame) -> list[str]:
    """What a row is called: its ``label`` or ``name``, where nodes differ with the node; or its configuration."""
    nodes = [f" on {node}" for node in frame["node"]] if "node" in frame else []
    several = nodes if len(set(nodes)) > 1 else [""] * len(frame)
    for column in ("label", "name"):
        if column in frame:
            return [f"{name}{node}" for name, node in zip(frame[column], several, strict=True)]
    if "sampler" in frame and "store" in frame:
        return [label(row) for row in frame.to_dict("records")]
    known = [column for column in ("run_id", "node", "rank") if column in frame]
    return [", ".join(str(row[column]) for column in known) for row in frame.to_dict("records")]


def column(frame: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """A column as floats, NaN where a cell is empty or the frame has no such column."""
    if name not in frame:
        return np.full(len(frame), np.nan)
    return np.asarray(frame[name].astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan))


def plain_log(ax: Axes, axes: str) -> None:
    """A log scale on ``x``, ``y`` or ``xy``, with numbers as one writes them, few on a long axis."""
    for name in axes:
        axis = ax.xaxis if name == "x" else ax.yaxis
        (ax.set_xscale if name == "x" else ax.set_yscale)("log")
        low, high = sorted(axis.get_view_interval())
        axis.set_major_locator(_ticks(float(high / low) if low > 0 else float("inf")))
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.set_minor_formatter(NullFormatter())


def _ticks(span: float) -> Locator:
    """Where the numbers of a log axis stand that ends at ``span`` times its beginning."""
    if span < 4:
        return MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10])
    return LogLocator(subs=(1.0,) if span > 150 else (1.0, 2.0, 5.0))


def short(value: float) -> str:
    """A number for an axis.

    >>> [short(value) for value in (0.002, 1, 2500, 5e7, 1e12)]
    ['0.002', '1', '2,500', '5e7', '1e12']
    """
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1 and value == round(value) else f"{value:g}"


def spelled(name: str) -> str:
    """A column's name as words, with its unit.

    >>> [spelled(name) for name in ("samples_per_s", "first_batch_s", "pss_peak_bytes", "stall_ratio")]
    ['samples/s', 'first batch, s', 'pss peak, bytes', 'stall ratio']
    """
    for end, unit in (("_per_s", "/s"), ("_bytes", ", bytes"), ("_s", ", s")):
        if name.endswith(end):
            return name.removesuffix(end).replace("_", " ") + unit
    return name.replace("_", " ")

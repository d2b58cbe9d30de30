"""Where experiments leave their pictures: SVG beside the CSV, the same bytes for the same figures."""

from __future__ import annotations

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from publishing import OUT

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Told apart by the colour-blind (Okabe and Ito 2008)."""
WIDTH, PANEL_HEIGHT = 7.0, 3.5  # inches, at which 9 pt is legible


def panels(rows: int, columns: int = 1, height: float = PANEL_HEIGHT) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, each ``height`` inches, row by row."""
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
        return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save(figure: Figure, name: str) -> None:
    """Write ``results/published/NAME`` (an SVG), without a date and with ids that depend on what is drawn alone."""
    OUT.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "shardlab"}):
        figure.savefig(OUT / name, format="svg", metadata={"Date": None})


def table(name: str) -> pd.DataFrame:
    """The published rows, those of earlier runs included."""
    return pd.read_csv(OUT / name)


def points(
    ax: Axes, frame: pd.DataFrame, label: str, value: str, by: str, bounds: tuple[str, str] = ("low", "high")
) -> Axes:
    """A line of the picture for each ``label``, the first on top; in it a point with its bounds for each ``by``."""
    labels, kinds = list(dict.fromkeys(frame[label])), list(dict.fromkeys(frame[by]))
    for number, kind in enumerate(kinds):
        of_kind = frame[(frame[by] == kind) & frame[value].notna()]
        shift = 0.6 * ((number + 0.5) / len(kinds) - 0.5)
        places = [labels.index(text) + shift for text in of_kind[label]]
        spread = [of_kind[value] - of_kind[bounds[0]], of_kind[bounds[1]] - of_kind[value]]
        ax.errorbar(
            of_kind[value], places, xerr=spread, fmt="o", markersize=5, capsize=2, label=str(kind),
            color=COLOURS[number % len(COLOURS)],
        )  # fmt: skip
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    for between in range(1, len(labels)):
        ax.axhline(between - 0.5, color="#dddddd", linewidth=0.8, zorder=0)
    return ax


def logarithmic(ax: Axes, text: str) -> None:
    """A logarithmic axis to the right, with plain numbers; at most a few of them."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 500 else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(text)


def ratio_axis(ax: Axes, text: str) -> None:
    """The same with a line where both are equal."""
    logarithmic(ax, text)
    ax.axvline(1, color="#000000", linewidth=0.8)

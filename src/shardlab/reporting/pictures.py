"""The figures that compare configurations, each with its text alternative: frames in, a part of the page out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pandas as pd
from matplotlib.axes import Axes

from shardlab.analysis import Results, figures
from shardlab.intervals import FEWEST
from shardlab.reporting import svg
from shardlab.reporting.configurations import Configuration
from shardlab.reporting.parts import Part, Picture, Text
from shardlab.reporting.words import between, bounded, number, rows_of

COLOURS = {
    **{colour: f"var(--c{place})" for place, colour in enumerate(figures.PALETTE, start=1)},
    figures.INK: "var(--text)",
    figures.QUIET: "var(--quiet)",
    figures.RULE: "var(--rule)",
    "#000000": "var(--text)",
    "#ffffff": "var(--back)",
    "#1f77b4": "var(--text)",  # of the caps of whiskers, lines without an area
}


class Studio:
    """Draws pictures whose ids no other picture of the same page has."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def picture(
        self, draw: Callable[[Axes], object], name: str, words: str, caption: str = "", rows: int | None = None
    ) -> Picture:
        """What ``draw`` draws on axes high enough for ``rows`` bars."""
        with svg.style():
            figure, ax = figures.sheet(rows)
            draw(ax)
            text = svg.inline(figure, f"f{next(self._numbers)}-", name, words, COLOURS)
        return Picture(text, name, words, caption)


def copies(studio: Studio, results: Results, chosen: Sequence[Configuration]) -> Iterator[Part]:
    """A bar for each node of the last run of each of ``chosen``, which answer one question."""
    names = {str(each.last["run_id"]): each.label for each in chosen}
    nodes = results.nodes[results.nodes["run_id"].isin(names)].copy()
    if not nodes["copies"].notna().any():
        yield Text(f"{chosen[0].where}: copies are not known; the reason is under Audit.")
        return
    several = nodes["run_id"].duplicated().any()
    labels = [names[run] + (f", {node}" if several else "") for run, node in nodes[["run_id", "node"]].to_numpy()]
    nodes.insert(0, "label", labels)
    told = [
        f"{row['label']}: {number(row['copies'], 2)}{between(row['copies_low'], row['copies_high'], 2)}"
        for row in rows_of(nodes)
    ]
    yield studio.picture(
        lambda ax: figures.copies_bars(ax, nodes),
        f"Copies on a node: {chosen[0].where}",
        "Copies, with the interval: " + "; ".join(told) + ".",
        "Bytes of the dataset by kind of memory, over the bytes of one copy: what is right of the dashed line is "
        "held again. The last run of each configuration.",
        rows=len(nodes),
    )


def throughput(studio: Studio, chosen: Sequence[Configuration]) -> Iterator[Part]:
    """A bar for each of ``chosen``, which answer one question, the fastest first."""
    rows = [{"label": each.label, **each.figures} for each in chosen if each.figures["samples_per_s"] is not None]
    if not rows:
        yield Text(f"{chosen[0].where}: no run has samples/s.")
        return
    told = [
        f"{row['label']}: {number(row['samples_per_s'])}"
        f"{between(row['samples_per_s_low'], row['samples_per_s_high'])}"
        for row in sorted(rows, key=lambda row: -row["samples_per_s"])
    ]
    yield studio.picture(
        lambda ax: figures.throughput(ax, pd.DataFrame(rows)),
        f"Different samples/s, all ranks together: {chosen[0].where}",
        "Samples per second, with the interval where there is one: " + "; ".join(told) + ".",
        "Distinct samples over the time of the slowest rank, every rank reading every byte of its batches. The "
        f"interval is that of the median over the runs; fewer than {FEWEST} have none.",
        rows=len(rows),
    )


def against(studio: Studio, frame: pd.DataFrame, name: str) -> Iterator[Part]:
    """Ratios to a baseline, a frame of :func:`shardlab.analysis.against` or of an experiment."""
    known = frame[frame["ratio"].notna()]
    if known.empty:
        return
    yield studio.picture(
        lambda ax: figures.ratios(ax, known),
        name,
        told(known),
        "At the dashed line both are equal. The axis is logarithmic: equal distances are equal factors.",
        rows=len(known),
    )


def told(ratios: pd.DataFrame) -> str:
    """Ratios in words, a frame with ``label``, ``ratio``, ``low`` and ``high``."""
    words = [f"{row['label']}: {bounded(row['ratio'], row['low'], row['high'])}" for row in rows_of(ratios)]
    return f"Ratios, with the interval where there is one: {'; '.join(words)}."

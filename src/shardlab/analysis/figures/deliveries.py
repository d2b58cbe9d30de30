"""Pictures of who was handed which sample."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from shardlab.analysis.figures.style import (
    BLUE,
    INK,
    ORANGE,
    TEXT_PT,
    VERMILLION,
    dress,
    key,
    nothing,
)

COLUMNS, LINES = 720, 256
"""Of the picture, at most: more are not seen, and make a page heavy."""
BINS = 180
UNSEEN = 0.05


def ownership(ax: Axes, indices: NDArray[np.int64]) -> Axes:
    """Rank by step, coloured by where in the dataset the samples lie; what a rank was not handed stays blank.

    ``indices`` is int (ranks, steps, batch), negative for nothing, as :func:`delivered` returns it. Each rank is a
    band as high as a batch. A smooth band is read in order: ranks that differ by a shade read strides, ranks of
    different colours read blocks, and a shuffled order is noise. Of large ledgers every k-th step is shown.
    """
    ranks, steps, batch = indices.shape
    if not (indices >= 0).any():
        return nothing(ax, "no sample was handed to a rank")
    every, of_batch = -(-steps // COLUMNS), -(-batch * ranks // LINES)
    shown = indices[:, ::every, ::of_batch]  # (ranks, some steps, some places of a batch)
    lines = shown.transpose(0, 2, 1).reshape(-1, shown.shape[1])
    picture = ax.imshow(
        np.ma.masked_less(lines, 0), aspect="auto", interpolation="nearest", cmap="viridis", vmin=0,
        extent=(0, steps, ranks, 0),
    )  # fmt: skip
    some = range(0, ranks, -(-ranks // 16))
    ax.set_yticks([rank + 0.5 for rank in some], [str(rank) for rank in some])
    ax.tick_params(axis="y", length=0)
    for rank in range(1, ranks):
        ax.axhline(rank, color=INK, linewidth=0.8)
    ax.set_ylabel("rank")
    ax.set_xlabel(_steps(every, blank=bool((shown < 0).any())))
    dress(ax, across="")
    _scale(ax, picture)
    return ax


def _steps(every: int, blank: bool) -> str:
    remarks = [f"one in {every} is shown"] * (every > 1) + ["blank: no sample"] * blank
    return "step" + (f"  ({'; '.join(remarks)})" if remarks else "")


def _scale(ax: Axes, picture: AxesImage) -> None:
    """The bar of colours, dressed as the axes are."""
    bar = ax.figure.colorbar(picture, ax=ax, pad=0.02, fraction=0.05)
    bar.set_label("place in the dataset", color=INK, fontsize=TEXT_PT)
    bar.ax.yaxis.set_major_formatter("{x:,.0f}")
    bar.ax.tick_params(colors=INK, labelsize=TEXT_PT)
    bar.outline.set_visible(False)


def owners(ax: Axes, indices: NDArray[np.int64], samples: int) -> Axes:
    """Along the dataset: which part of the samples went to no rank, to one, to two or more; in at most BINS bins.

    ``indices`` as in :func:`ownership`; a sample that one rank was handed twice has one owner. A triangle marks each
    bin where so few went to none, or to several, that they would not be seen.
    """
    if samples < 1:
        return nothing(ax, "the dataset has no samples")
    counts = owners_of(indices, samples)
    bins = min(BINS, samples)
    edges = np.linspace(0, samples, bins + 1).round().astype(int)
    start = np.zeros(bins)
    kinds = {
        "one rank": (BLUE, counts == 1),
        "two or more": (ORANGE, counts > 1),
        "no rank": (VERMILLION, counts == 0),
    }
    for said, (colour, chosen) in kinds.items():
        share = np.add.reduceat(chosen, edges[:-1], dtype=np.int64) / np.diff(edges)
        name = f"{said} ({int(chosen.sum()):,})"
        ax.bar(edges[:-1], share, np.diff(edges), bottom=start, align="edge", color=colour, label=name)
        if said != "one rank":
            found = np.flatnonzero((share > 0) & (share < UNSEEN))
            middles = (edges[:-1] + edges[1:])[found] / 2
            ax.plot(middles, np.full(len(found), 1.05), "v", color=colour, markersize=5, label="_")
        start = start + share
    ax.set_xlim(0, samples)
    ax.set_ylim(0, 1.1)
    ax.set_yticks([0, 0.5, 1], ["0", "half", "all"])
    ax.set_xlabel("place in the dataset")
    ax.set_ylabel("part of the samples")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    key(ax)
    return dress(ax, across="")


def owners_of(indices: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """How many ranks were handed each sample, int64 (samples,); indices outside the dataset count nowhere.

    >>> owners_of(np.array([[[0, 1]], [[1, -1]]]), 3).tolist()
    [1, 2, 0]
    """
    counts = np.zeros(samples, dtype=np.int64)
    for of_rank in indices:
        inside = of_rank[(of_rank >= 0) & (of_rank < samples)]
        counts[inside] += 1  # once, however often an index is in there
    return counts

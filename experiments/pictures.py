"""The pictures of experiments, drawn from what is published: each can be drawn again without measuring again.

    python experiments/pictures.py [NAME]       (without a name: all whose figures are there)
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from figure import OUT, save, table
from shardlab.analysis import figures

Picture = Callable[[pd.DataFrame], Figure]


def draw(name: str) -> None:
    """``results/published/NAME.svg`` from ``NAME.csv``."""
    save(PICTURES[name](table(f"{name}.csv")), f"{name}.svg")


def ratios(frame: pd.DataFrame) -> Figure:
    """A point with its interval for each pair."""
    figure, ax = figures.sheet(len(frame))
    figures.ratios(ax, frame)
    return figure


def costs(frame: pd.DataFrame) -> Figure:
    """What measuring costs: ratios near 1 on an axis of their own, shares of the job's time beside their limit."""
    frame = frame.assign(label=frame["what"] + ", " + frame["setting"], target=frame["limit"])
    return ratios(frame[frame["what"].isin(["ledger", "A/A"])])


def against_truth(frame: pd.DataFrame) -> Figure:
    """How far each reading strays from what is known to be there."""
    figure, ax = figures.sheet()
    for inside, of_kind in frame.groupby("inside"):
        colour = figures.PALETTE[0 if inside else 5]
        ax.plot(
            of_kind["true_copies"], of_kind["error_bytes_per_process"] / 2**20, "o", markersize=4, color=colour,
            label="inside its interval" if inside else "outside",
        )  # fmt: skip
    for side in (-4, 4):
        ax.axhline(side, color=figures.INK, linestyle=(0, (4, 3)), linewidth=1)
    ax.set_xlabel("copies that are there")
    ax.set_ylabel("error, MiB for each process")
    figures.key(ax)
    figures.dress(ax, across="y")
    return figure


def index_stream(frame: pd.DataFrame) -> Figure:
    """Memory and the time to the first index over the length of the dataset."""
    frame = frame.assign(
        label=frame["sampler"] + ", " + frame["form"], rss_mib=frame["rss_peak_bytes"] / 2**20,
        first_ms=1000 * frame["first_index_s"],
    )  # fmt: skip
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for ax, y, said in ((left, "first_ms", "first index, ms"), (right, "rss_mib", "memory at its peak, MiB")):
        figures.curve(ax, frame, "n", y, "label", log="xy")
        ax.set_xlabel("samples in the dataset")
        ax.set_ylabel(said)
        ax.get_legend().remove()
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def records(frame: pd.DataFrame) -> Figure:
    """Lists that a node holds, before and after an epoch has touched the records."""
    names = frame["residency"] + ", " + frame["worker_start_method"]
    figure, ax = figures.sheet(len(frame))
    places = figures.lines_of(ax, names)
    for shift, column, said in ((-0.2, "lists_before", "at the start"), (0.2, "lists_after", "after an epoch")):
        ax.barh([p + shift for p in places], frame[column], 0.38, label=said,
                color=figures.PALETTE[0 if shift < 0 else 1])  # fmt: skip
    ax.axvline(1, color=figures.INK, linestyle=(0, (4, 3)), linewidth=1)
    ax.set_xlabel("lists of records on the node, 4 ranks with 2 workers each")
    figures.key(ax)
    figures.dress(ax)
    return figure


def frameworks(frame: pd.DataFrame) -> Figure:
    """Copies that a node holds in training, by framework and data path."""
    figure, ax = figures.sheet(len(frame))
    places = figures.lines_of(ax, frame["name"])
    ax.barh(places, frame["copies"], 0.6, color=figures.PALETTE[0])
    spread = [frame["copies"] - frame["copies_low"], frame["copies_high"] - frame["copies"]]
    ax.errorbar(frame["copies"], places, xerr=spread, fmt="none", ecolor=figures.INK, capsize=3)
    ax.axvline(1, color=figures.INK, linestyle=(0, (4, 3)), linewidth=1)
    for place, accuracy in zip(places, frame["accuracy"], strict=True):
        figures.note(ax, float(frame["copies_high"].max()), place, f"{accuracy:.4f}")
    ax.set_xlabel("copies of MNIST on the node (accuracy beside)")
    figures.dress(ax)
    return figure


PICTURES: dict[str, Picture] = {
    "data_paths": ratios,
    "decode_cost": ratios,
    "beside_torchrun": lambda frame: ratios(frame.assign(target=frame["limit"])),
    "profiling_cost": costs,
    "copies_against_truth": against_truth,
    "index_stream": index_stream,
    "records_table": records,
    "frameworks": frameworks,
}

if __name__ == "__main__":
    for picture in sys.argv[1:] or PICTURES:
        if picture in PICTURES and (OUT / f"{picture}.csv").exists():
            draw(picture)

"""How many copies does a node hold, by the number of ranks, where the dataset lies and how workers start?

Hypothesis: `private` is a copy for each rank. Workers add none of an array, which torch moves to shared memory when
it sends it to one; of a list of Python objects each spawned worker has its own at once, a forked one as reference
counts of what it reads are written. `inherited` is one array for all ranks as long as workers are forked, and of a
list as many as processes read it. `shared` and `mmap` are one copy, whatever the ranks and however workers start.

How to read the answer: a row for each run, most memory first. ``copies`` is what shardlab.profile says: of what the
store holds, and empty where one of that is not clear of the noise. ``built_ratio`` is the same memory over one copy
as the dataset builds it (``built_bytes``), so that rows of one dataset compare: a shared list is encoded, and takes
less than one. ``low`` and ``high`` are bounds of it, 4 MiB for each process. An epoch is read, all records by the
ranks or their workers in equal parts, so a forked worker has touched what it read and not the rest. Takes about 6
minutes: arrays in every store by ranks, and by how workers start at two ranks; of lists what differs.

    python experiments/copies_by_start.py [--full] [--only TEXT]      (--full: all x ranks x starts x 2 and 4 workers)
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import figure
from commands import end_as_interrupted, run
from copies_cases import DATASETS, NO_WORKERS, Case, all_cases, few_cases
from publishing import publish
from shardlab.dataset import DatasetSpec
from shardlab.launch import probe, rundir
from shardlab.launch.copies import NOISE_BYTES_PER_PROCESS

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Row:
    """One run; see the module's docstring. ``reason`` says why ``copies`` is empty."""

    name: str
    kind: str
    store: str
    ranks: int
    workers: int
    worker_start_method: str
    processes: int
    built_bytes: int
    stored_bytes: int
    used_bytes: int
    control_bytes: int
    copies: float | None
    copies_low: float | None
    copies_high: float | None
    built_ratio: float
    low: float
    high: float
    flags: str
    reason: str


def main() -> None:
    """Run all, print each as it ends and all of them sorted; write CSV and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all stores, starts and numbers of ranks")
    parser.add_argument("--only", default="", help="only cases so named ('list, shared'); the others stay")
    options = parser.parse_args()
    end_as_interrupted()
    rows = []
    for case in all_cases() if options.full else few_cases():
        if options.only in case.name:
            rows.append(row_of(case))
            print(line(rows[-1]), flush=True)
            publish("copies_by_start.csv", rows, key="name", order=place)
    publish("copies_by_start.csv", rows, key="name" if options.only else None, order=place)
    print("\nMost memory first:")
    print("\n".join(line(row) for row in sorted(rows, key=lambda row: -row.built_ratio)))
    draw()


def place(row: Mapping[str, Any]) -> float:
    """What the file is sorted by."""
    return -float(row["built_ratio"])


def row_of(case: Case) -> Row:
    """Run a case."""
    with tempfile.TemporaryDirectory(prefix="copies-") as results:
        ended = run("profile", case.flags, Path(results))
        figures, node = ended.ran, ended.node
    built, stored = built_bytes(case.kind), int(node["dataset_bytes"])
    used, control, processes = (int(node[name]) for name in ("used_bytes", "control_bytes", "processes"))
    noise = NOISE_BYTES_PER_PROCESS * processes / built
    ratio = built_ratio(figures["copies"], used - control, stored, built)
    return Row(
        case.name, case.kind, case.store, case.ranks, case.each, case.method, processes,
        built, stored, used, control, figures["copies"], figures["copies_low"], figures["copies_high"],
        ratio, max(0.0, ratio - noise), ratio + noise, case.flags,
        figures["reason"] if figures["copies"] is None else "",
    )  # fmt: skip


def built_ratio(copies: float | None, grown: int, stored: int, built: int) -> float:
    """What is held over one copy as it is built, by ``copies`` of what is stored, or by how much memory grew.

    >>> built_ratio(1.0, 0, 50, 200), built_ratio(None, 60, 50, 200)
    (0.25, 0.3)
    """
    return (grown if copies is None else copies * stored) / built


@cache
def built_bytes(kind: str) -> int:
    """One copy as the dataset builds it, found out in a process that is thrown away."""
    with rundir.run_folder() as folder:
        size = probe.facts_of(DatasetSpec(DATASETS[kind]), folder, TIMEOUT_S).dataset_bytes
    assert size is not None, "both lie in memory"
    return size


def line(row: Row) -> str:
    """A row for the screen."""
    copies = "-" if row.copies is None else f"{row.copies:.2f}"
    return f"{row.name:52} {row.built_ratio:6.2f} [{row.low:.2f}, {row.high:.2f}] of one, copies {copies:>5}"


def draw() -> None:
    """A panel for each dataset: memory over one copy as built, by store and ranks, and by how workers start."""
    frame = figure.table("copies_by_start.csv").sort_values(["store", "ranks"], ascending=[False, True])
    started = frame["workers"].astype(str) + " by " + frame["worker_start_method"]
    frame["start"] = started.fillna(NO_WORKERS)
    frame["label"] = frame["store"] + ", ranks: " + frame["ranks"].astype(str)
    kinds = [kind for kind in DATASETS if kind in set(frame["kind"])]
    starts = sorted(set(frame["start"]), key=lambda start: (start != NO_WORKERS, start))
    drawing, axes = figure.panels(len(kinds), height=1 + 0.4 * frame["label"].nunique())
    for ax, kind in zip(axes, kinds, strict=True):
        shown = frame[frame["kind"] == kind].set_index(["label", "start"])
        places = list(product(dict.fromkeys(shown.index.get_level_values("label")), starts))
        figure.points(ax, shown.reindex(places).reset_index(), "label", "built_ratio", "start")  # one colour a start
        ax.axvline(1, color="#000000", linewidth=0.8)
        ax.set_xlim(left=0)
        ax.set_title(f"{kind} ({DATASETS[kind]})", loc="left")
    axes[0].legend(title="workers of a rank", frameon=False)
    axes[-1].set_xlabel("memory over one copy as the dataset builds it (line: one copy)")
    figure.save(drawing, "copies_by_start.svg")


if __name__ == "__main__":
    main()

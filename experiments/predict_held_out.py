"""How far is the memory that `shardlab.predict` foretells from what larger jobs then take?

Hypothesis: from runs of at most 3 ranks and 2 workers each, the peak of jobs with more ranks, more workers, more
batches in flight and several times the data is foretold to 10 %, and lies in the interval printed beside it.

How to read the answer: each row is a job that no model was fitted to; those of one ``family`` are foretold by the
small runs of that family. All predictions are written down before the first of the jobs is run. ``measured_bytes``
is read by this script and not by shardlab's monitor: the PSS of the job's processes (its launcher, ranks and
workers, without the monitor and without the process that sizes the dataset), summed, twenty times a second where the
machine is quick enough, and in between what comes to their anonymous pages and to the machine's shared memory: a
shared store is filled from a copy that goes away within a tenth of a second. The largest sum counts.
``error_ratio`` is 0.05 where the prediction is 5 % too large, ``within`` whether the interval held what was measured.
The figure shows both, with the interval, beside the line where they are equal. ``readings_per_s`` says how many there
were. Of a store that maps files the pages in memory count here, as they do in PSS; `shardlab.predict` tells them
apart, as the kernel may drop them.

    python experiments/predict_held_out.py [--only FAMILY]
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardlab.predicting.small_runs import Evidence

os.environ.setdefault("OMP_NUM_THREADS", "1")

from peak_memory import peak_bytes
from publishing import OUT, publish
from shardlab.config import OutputConfig, RunConfig, argv_of
from shardlab.dataset import DatasetSpec, facts_without_building
from shardlab.plan import resolve
from shardlab.predicting.node import Data, node_of

# The ranks of the small runs are spawned and import this file: what draws is imported where it is used.

TARGET = 0.10
NAME = "predict_held_out.csv"

SHARDS = "held-out-shards"  # a folder that is written here and goes when all is done

FAMILIES = {
    "private": RunConfig(dataset="synthetic:160MiB", batch_size=64, nproc=4, workers=2, compute="50ms"),
    "private-spawn": RunConfig(
        dataset="synthetic:160MiB", sampler="accelerate-shard", nproc=3, workers=2, worker_start_method="spawn"
    ),
    "shared": RunConfig(dataset="synthetic:512MiB", sampler="keyed", nproc=4),
    "ring": RunConfig(dataset="synthetic:512MiB", sampler="ring", nproc=4),
    "dispatch": RunConfig(dataset="synthetic:160MiB", sampler="accelerate", nproc=4),
    "records": RunConfig(dataset="records:100k", nproc=4, workers=2, batch_size=256),
    "mnist": RunConfig(dataset="mnist", nproc=4, batch_size=64),
    "mmap": RunConfig(dataset="synthetic:512MiB", store="mmap", nproc=4),
    "sharded": RunConfig(dataset=f"{SHARDS}/512MiB", sampler="sharded", nproc=4),
}
"""What the small runs are made of; their ranks and workers are at most 3 and 2 of these."""

HELD_OUT = {
    "private, 4 ranks": ("private", {"nproc": 4, "workers": 1, "dataset": "synthetic:512MiB"}),
    "private, 4 workers each": ("private", {"nproc": 2, "workers": 4, "dataset": "synthetic:768MiB"}),
    "private, much in flight": (
        "private", {"nproc": 4, "workers": 4, "prefetch_factor": 4, "dataset": "synthetic:384MiB"},
    ),
    "accelerate-shard, spawned workers": (
        "private-spawn", {"nproc": 3, "workers": 3, "dataset": "synthetic:256MiB"},
    ),
    "keyed, shared": ("shared", {"nproc": 5, "dataset": "synthetic:1280MiB"}),
    "ring": ("ring", {"nproc": 5, "dataset": "synthetic:1280MiB"}),
    "accelerate dispatch": ("dispatch", {"nproc": 5, "dataset": "synthetic:256MiB"}),
    "records, forked workers": ("records", {"nproc": 4, "workers": 3, "dataset": "records:250k"}),
    "mnist": ("mnist", {"nproc": 6}),
    "distributed, a file written and mapped": ("mmap", {"nproc": 5, "dataset": "synthetic:1280MiB"}),
    "sharded": ("sharded", {"nproc": 5, "dataset": f"{SHARDS}/1280MiB"}),
}  # fmt: skip
"""Jobs larger than any that is fitted to: their family, and what is different in them."""


@dataclass(frozen=True)
class Row:
    """One job that was foretold and then run; ``measured_bytes`` is None until it has."""

    name: str
    family: str
    flags: str
    predicted_bytes: int
    low_bytes: int
    high_bytes: int
    phase: str
    measured_bytes: int | None = None
    readings_per_s: float | None = None
    error_ratio: float | None = None
    within: bool | None = None


def main() -> None:
    """Fit every family, write down all predictions, then run the jobs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="one family", choices=FAMILIES)
    only = parser.parse_args().only
    if only in (None, "sharded"):
        write_shards()
    try:
        run(only)
    finally:
        shutil.rmtree(SHARDS, ignore_errors=True)


def write_shards() -> None:
    """The two folders that the sharded jobs read."""
    for size in ("512MiB", "1280MiB"):
        command = [sys.executable, "-m", "shardlab.shard", f"synthetic:{size}", f"{SHARDS}/{size}", "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run(only: str | None) -> None:
    """All jobs, or those of one family."""
    chosen = {name: job for name, job in HELD_OUT.items() if only in (None, job[0])}
    evidence = {family: evidence_of(FAMILIES[family]) for family in dict.fromkeys(job[0] for job in chosen.values())}
    rows = [foretold(name, family, jobs_of(name), evidence[family]) for name, (family, _) in chosen.items()]
    publish(NAME, rows, key="name")
    for row in rows:
        low, high = row.low_bytes / 2**20, row.high_bytes / 2**20
        print(f"foretold {row.predicted_bytes / 2**20:8,.0f} MiB ({low:,.0f} to {high:,.0f})  {row.name}", flush=True)
    rows = [measured(row) for row in rows]
    publish(NAME, rows, key="name" if only else None)
    draw(kept())
    worst = max(rows, key=lambda row: abs(row.error_ratio or 0.0))
    print(f"worst: {worst.error_ratio:+.1%} ({worst.name}); the target is {TARGET:.0%} to either side")


def jobs_of(name: str) -> RunConfig:
    """The held-out job, resolved."""
    family, different = HELD_OUT[name]
    return resolve(replace(FAMILIES[family], **different)).config  # type: ignore[arg-type]


def evidence_of(config: RunConfig) -> Evidence:
    """The small runs of a family."""
    from shardlab.bar import Bar
    from shardlab.predicting.small_runs import gathered

    resolved = resolve(config).config
    with tempfile.TemporaryDirectory() as results, Bar(2, quiet=True) as bar:
        return gathered(resolved, OutputConfig(results=results, pss_timeline=True), bar, None)


def foretold(name: str, family: str, job: RunConfig, evidence: Evidence) -> Row:
    """What the family's model says of the job, whose dataset is so many times the size of the family's."""
    from shardlab.predicting.small_runs import slots_of

    data = data_of(job, evidence.data)
    node = node_of(job, data, ring_slots=slots_of(job, data))
    forecast = evidence.model.forecast(replace(node, page_cache_bytes=0.0))  # PSS counts pages of files too
    value, low, high = (round(bound) for bound in forecast.needs)
    return Row(name, family, " ".join(argv_of(job)), value, low, high, forecast.phase)


def data_of(job: RunConfig, small: Data) -> Data:
    """The job's dataset: its size is known by its name, or in proportion to its number of records."""
    facts = facts_without_building(DatasetSpec(job.dataset, job.data_dir, job.seed))
    if facts is not None and facts.dataset_bytes:
        return small.grown(facts.dataset_bytes)
    if not job.dataset.startswith("records:"):
        return small
    records = int(job.dataset.removeprefix("records:").removesuffix("k")) * 1000
    return small.grown(small.nbytes * records // (small.samples or 1))


def measured(row: Row) -> Row:
    """Run the job and read its memory."""
    with tempfile.TemporaryDirectory() as results:
        flags = [*row.flags.split(), "--no-control", "--quiet", "--results", results]
        peak, readings_per_s = peak_bytes([sys.executable, "-m", "shardlab.profile", *flags])
    error = row.predicted_bytes / peak - 1
    print(f"took     {peak / 2**20:8,.0f} MiB, foretold {error:+.1%}  {row.name}", flush=True)
    within = row.low_bytes <= peak <= row.high_bytes
    return replace(row, measured_bytes=peak, readings_per_s=readings_per_s, error_ratio=error, within=within)


def kept() -> list[Row]:
    """All jobs of the published file that have been run, those of another day too."""
    with (OUT / NAME).open(newline="") as file:
        return [
            Row(
                row["name"], row["family"], row["flags"], int(row["predicted_bytes"]), int(row["low_bytes"]),
                int(row["high_bytes"]), row["phase"], int(row["measured_bytes"]),
                float(row["readings_per_s"] or 0) or None, float(row["error_ratio"]), row["within"] == "True",
            )
            for row in csv.DictReader(file)
            if row["measured_bytes"]
        ]  # fmt: skip


def draw(rows: Sequence[Row]) -> None:
    """Foretold over measured, with the interval; the shaded band is 10 % to either side."""
    from figure import COLOURS, panels, save

    figure, (axes,) = panels(1)
    gib = 2.0**30
    most = 1.1 * max(max(row.measured_bytes or 0, row.high_bytes) for row in rows) / gib
    axes.plot([0, most], [0, most], color="grey", linewidth=1)
    axes.fill_between([0, most], [0, most * (1 - TARGET)], [0, most * (1 + TARGET)], color="grey", alpha=0.15)
    for number, row in enumerate(rows):
        x, y = (row.measured_bytes or 0) / gib, row.predicted_bytes / gib
        spread = [[y - row.low_bytes / gib], [row.high_bytes / gib - y]]
        colour = COLOURS[number % len(COLOURS)]
        marker = "o" if number < len(COLOURS) else "s"
        axes.errorbar([x], [y], yerr=spread, fmt=marker, color=colour, capsize=3, label=row.name)
    axes.set_xlabel("measured, GiB")
    axes.set_ylabel("foretold, GiB")
    axes.legend(fontsize=7, loc="upper left")
    save(figure, "predict_held_out.svg")


if __name__ == "__main__":
    main()

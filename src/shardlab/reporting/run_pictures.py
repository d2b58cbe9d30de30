"""A picture for each configuration of its last run: seconds of its ranks, memory, who got which sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shardlab.analysis import Results, figures, ledgers
from shardlab.errors import ShardlabError
from shardlab.reporting.configurations import Configuration
from shardlab.reporting.parts import Part, Picture, Text
from shardlab.reporting.pictures import Studio
from shardlab.reporting.words import listed, many, mib, number, rows_of

MOST_RUNS = 12
"""Runs that have a picture of their own: a page of more is not read, and weighs megabytes."""
MOST_MOMENTS = 150
MOST_BYTES = 600_000  # of pictures of ledgers, the heaviest


def seconds(studio: Studio, results: Results, chosen: Sequence[Configuration]) -> Iterator[Part]:
    """Where the time of each rank went, a picture for each configuration."""
    for each in chosen[:MOST_RUNS]:
        run_id = str(each.last["run_id"])
        ranks = results.ranks[results.ranks["run_id"] == run_id]
        if ranks.empty:
            yield Text(f"{each.name}: no rank of run {run_id} ended an epoch.")
            continue
        yield studio.picture(
            partial(figures.seconds, ranks=ranks, run_id=run_id),
            f"{each.name}: seconds of each rank",
            _seconds(ranks),
            f"Run {run_id}.",
            rows=ranks["rank"].nunique(),
        )
    yield from _not_pictured(chosen[MOST_RUNS:])


def _seconds(ranks: pd.DataFrame) -> str:
    sums = ranks.groupby("rank")[["wait_s", "compute_s", "comm_s"]].sum(min_count=1).reset_index()
    told = [
        f"rank {row['rank']} waits {number(row['wait_s'], 2)} s, computes {number(row['compute_s'], 2)} s, "
        f"communicates {number(row['comm_s'], 2)} s"
        for row in rows_of(sums)
    ]
    return f"Over all timed epochs {listed(told)}; a dash is not known."


def memory(studio: Studio, results: Results, chosen: Sequence[Configuration]) -> Iterator[Part]:
    """What each process held over time, a picture for each configuration."""
    for each in chosen[:MOST_RUNS]:
        run_id = str(each.last["run_id"])
        rows = results.memory[results.memory["run_id"] == run_id]
        if rows.empty:
            yield Text(f"{each.name}: no memory was recorded of run {run_id}.")
            continue
        yield studio.picture(
            partial(figures.memory_over_time, memory=thinned(rows), run_id=run_id),
            f"{each.name}: memory of each process",
            _peaks(rows),
            f"Run {run_id}; processes: {rows['pid'].nunique()}.",
        )
    yield from _not_pictured(chosen[MOST_RUNS:])


def thinned(rows: pd.DataFrame, most: int = MOST_MOMENTS) -> pd.DataFrame:
    """About ``most`` moments of each process at most; its largest RSS, its last row and, if few, every PSS stay."""
    place = rows.groupby(["node", "pid"], dropna=False)
    every = -(-place["t_s"].transform("size") // most)
    peak = place["rss_bytes"].transform("max")
    read = rows["pss_bytes"].notna() & (place["pss_bytes"].transform("count") <= most)
    last = place.cumcount(ascending=False) == 0
    keep = (place.cumcount() % every == 0) | (rows["rss_bytes"] == peak).fillna(False) | read | last
    return rows.loc[keep.astype(bool)]


def _peaks(rows: pd.DataFrame) -> str:
    told = []
    for row in rows_of(rows.groupby(["role", "rank"], dropna=False)["rss_bytes"].max().reset_index()):
        serves = "" if row["rank"] is None else f" {'' if row['role'] == 'rank' else 'of rank '}{row['rank']}"
        told.append(f"{row['role']}{serves} up to {mib(row['rss_bytes'])} MiB")
    return f"Largest resident size: {'; '.join(told)}."


def ownership(studio: Studio, folder: Path, chosen: Sequence[Configuration]) -> Iterator[Part]:
    """Which rank got which samples, of the runs whose ledgers were kept, until they weigh MOST_BYTES."""
    names = [file.name for file in (folder / "ledger").glob("*.npy")]
    without, left, weight = [], [], 0
    for each in chosen:
        run = each.last
        if not any(name.startswith(f"{run['run_id']}-") for name in names):
            without.append(each.name)
            continue
        if weight > MOST_BYTES:
            left.append(each)
            continue
        try:
            indices = ledgers.delivered(folder, str(run["run_id"]), int(run["batch_size"]))
        except ShardlabError as error:
            yield Text(f"{each.name}: {error}.")
            continue
        for picture in _owned(studio, each, indices):
            weight += len(picture.svg)
            yield picture
    if without:
        yield Text(f"No delivered indices were kept of {listed(without)}: --keep-ledger keeps them.")
    yield from _not_pictured(left)


def _owned(studio: Studio, each: Configuration, indices: NDArray[np.int64]) -> Iterator[Picture]:
    run, words = each.last, in_words(indices, each.last["samples"])
    yield studio.picture(
        lambda ax: figures.ownership(ax, indices),
        f"{each.name}: which samples each rank got",
        words,
        f"Run {run['run_id']}. {words}",
        rows=len(indices),
    )
    if run["samples"]:
        yield studio.picture(
            lambda ax: figures.owners(ax, indices, int(run["samples"])),
            f"{each.name}: how many ranks got each sample",
            words,
            "None is a hole, two or more an overlap."
            + (f" --max-steps {run['max_steps']} ended the epoch." if run["max_steps"] else ""),
            rows=2,
        )


def in_words(indices: NDArray[np.int64], samples: int | None) -> str:
    """What a ledger holds, counted: int64 (ranks, steps, batch), -1 where a rank got nothing."""
    got = indices[indices >= 0]
    different = len(np.unique(got))
    text = f"{many(len(indices), 'rank')}, {many(indices.shape[1], 'step')}: {len(got):,} samples delivered"
    if samples is None:
        return f"{text}, {different:,} of them different."
    inside = len(np.unique(got[got < samples]))
    return f"{text}, {len(got) - different:,} of them again, {samples - inside:,} of {samples:,} to no rank."


def _not_pictured(left: Sequence[Configuration]) -> Iterator[Part]:
    if left:
        rest = listed([f"{each.last['run_id']} ({each.name})" for each in left])
        yield Text(f"Without a picture here: {rest}. Name a run with --runs to see it.")

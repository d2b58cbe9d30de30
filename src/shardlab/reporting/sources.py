"""Which page a folder calls for, and which of its runs go on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from shardlab.analysis import Results, load
from shardlab.analysis.aggregate import INTERRUPTED
from shardlab.csvlog import read_rows
from shardlab.errors import UsageError
from shardlab.reporting.parts import Page

NEEDED = ("run_id", "started_at", "sampler", "store", "dataset", "nproc", "framework", "status")
"""Columns that a file of runs must have, of whatever version it is."""

_MEASURE = "measure something first: python -m shardlab.profile --results {}"


def page(folder: Path, title: str | None, runs: Sequence[str] | None = None, last: int | None = None) -> Page:
    """The page of a folder with ``runs.csv``, or ``runs.1.csv`` of an older version, or else with other CSV files.

    Raises UsageError where there is nothing to report on, a run that was asked for is not there, or the file of
    runs is not of shardlab.
    """
    title = title or f"Report on {folder.resolve().name}"
    if not folder.is_dir():
        raise UsageError("RESULTS must be a folder that exists", str(folder), cure=_MEASURE.format(folder))
    files = [*folder.glob("runs.csv"), *folder.glob("runs.[0-9]*.csv")]
    if files:
        refuse_foreign(files)
        from shardlab.reporting import runs_page

        return runs_page.page(chosen(load(folder, all_versions=True), folder, runs, last), folder, title)
    if runs is not None or last is not None:
        raise UsageError("--runs and --last choose rows of runs.csv", f"{folder}, which has none")
    if list(folder.glob("*.csv")):
        from shardlab.reporting import experiments_page

        return experiments_page.page(folder, title)
    raise UsageError("RESULTS must hold CSV files", f"{folder}, which has none", cure=_MEASURE.format(folder))


def chosen(results: Results, folder: Path, runs: Sequence[str] | None, last: int | None) -> Results:
    """The results with only the rows of the runs that were asked for, in order of their start, each row once.

    A run that was interrupted is none of the ``last``. Raises UsageError where no other run is left.
    """
    every = results.runs.sort_values("started_at", kind="stable").drop_duplicates("run_id", keep="last")
    ids = list(every["run_id"])
    stopped = set(every.loc[every["status"].eq(INTERRUPTED).fillna(False).astype(bool), "run_id"])
    if not ids:
        raise UsageError("runs.csv must have rows", f"{folder}, without one", cure=_MEASURE.format(folder))
    unknown = [run for run in runs or () if run not in set(ids)]
    if unknown:
        raise UsageError("--runs must name runs of runs.csv", ",".join(unknown), ids[-5:])
    kept = [run for run in ids if runs is None or run in runs]
    if last is not None:
        kept = [run for run in kept if run not in stopped][-last:]
    if stopped.issuperset(kept):
        rule = "a report needs a run that was not interrupted"
        raise UsageError(rule, ",".join(kept[-5:]) or "none", cure=_MEASURE.format(folder))
    frames = {
        field.name: _rows_of(getattr(results, field.name), kept) for field in dataclasses.fields(results)
    }
    frames["runs"] = every.set_index("run_id", drop=False).loc[kept].reset_index(drop=True)
    return Results(**frames)


def refuse_foreign(files: Sequence[Path]) -> None:
    """Raises UsageError for a file of runs that has rows, but not the columns that shardlab writes."""
    for file in files:
        rows = read_rows(file)
        missing = [name for name in NEEDED if rows and name not in rows[0]]
        if missing:
            rule = f"{file.name} must have the columns that shardlab writes"
            raise UsageError(rule, f"none named {', '.join(missing)}", cure="move it out of the folder")


def _rows_of(frame: pd.DataFrame, runs: Sequence[str]) -> pd.DataFrame:
    """Those of ``runs``, each once: folders that were merged may have a row twice."""
    return frame[frame["run_id"].isin(runs)].drop_duplicates(ignore_index=True)

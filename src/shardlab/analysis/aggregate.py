"""Runs as a table with one row per configuration: medians, how far they may be trusted, what went wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from shardlab.config import RunConfig
from shardlab.intervals import Median
from shardlab.records import MACHINE

FIGURES = (
    "samples_per_s", "copies", "stall_ratio", "cpu_s_per_1k_samples", "first_batch_s", "pss_peak_bytes",
    "duplicate_bytes",
)  # fmt: skip
"""Columns of ``runs.csv`` that a configuration has the median of, and an interval."""

COUNTERS = ("delivered", "duplicates", "missing")
"""Columns of which it has the largest of any run: one wrong run is not averaged away."""

ENDED_WELL = ("ok", "audit")
"""What ``status`` says of runs that were measured to their end."""

INTERRUPTED = "interrupted"
"""What it says of runs that somebody stopped: they came to nothing and are no failure either."""

_NOT_COMPARED = ("repeats", "data_dir")  # they change how often is measured, and where files lie
_FLAGS = tuple(field.name for field in dataclasses.fields(RunConfig) if field.name not in _NOT_COMPARED)
_WORDS = {
    "nproc": "{} ranks", "workers": "{} workers", "batch_size": "batch {}", "max_steps": "{} steps",
    "epochs": "{} epochs", "prefetch_factor": "{} batches ahead", "dataset": "on {}", "framework": "{}",
    "device": "on {}",
}  # fmt: skip
_ALWAYS_SAID = ("dataset", "nproc")
_DEFAULTS: dict[str, Any] = {**dataclasses.asdict(RunConfig()), "framework": "profile"}


def by_configuration(runs: pd.DataFrame, by: Sequence[str] | None = None) -> pd.DataFrame:
    """One row for each configuration in ``runs``, in the order in which they first ran.

    Configurations differ in the columns ``by``, or else in those of :func:`differing`. The columns are these,
    ``n`` (runs that were measured to their end), ``failed`` (those that were not, and are in no figure),
    ``audit`` (of the ``n``, where ranks did not get what they should, so that their samples/s do not count), for
    each of FIGURES its median with ``_low`` and ``_high``, and for each of COUNTERS its maximum. Runs that were
    interrupted are left out.

    The bounds are the bootstrap's, empty below :data:`shardlab.intervals.FEWEST` values. Those of ``copies`` are the
    medians of the bounds that each run gave: what a reading misses, no repetition averages out.
    """
    runs = without_interrupted(runs)
    keys = list(by) if by is not None else differing(runs)
    groups = runs.groupby(keys, dropna=False, sort=False)
    rows = [{**dict(zip(keys, key, strict=True)), **_summary(group)} for key, group in groups]
    bounds = [name + end for name in FIGURES for end in ("", "_low", "_high")]
    counts = ["n", "failed", "audit"]
    table = pd.DataFrame(rows, columns=[*keys, *counts, *bounds, *COUNTERS])
    return table.astype({
        **{name: runs[name].dtype for name in keys},
        **dict.fromkeys([*counts, *COUNTERS], "Int64"),
        **dict.fromkeys(bounds, "float64"),
    })  # fmt: skip


def without_interrupted(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of all other runs."""
    return runs[~runs["status"].eq(INTERRUPTED).fillna(False).astype(bool)]


def differing(runs: pd.DataFrame) -> list[str]:
    """``sampler``, ``store``, and the other flags in which ``runs`` differ; also who trains, where it is known.

    The start method is no such flag where it follows from the store, as ``inherited`` needs fork.
    """
    flags = [name for name in _FLAGS[2:] if name in runs and runs[name].nunique(dropna=False) > 1]
    if "start_method" in flags and runs.groupby("store")["start_method"].nunique(dropna=False).max() == 1:
        flags.remove("start_method")
    trained = ["framework"] if "framework" in runs and runs["framework"].nunique() > 1 else []
    return ["sampler", "store", *flags, *trained]


def label(row: Mapping[Any, Any]) -> str:
    """A short name of the configuration of a row: its sampler and store, and its other flags that are no default.

    >>> label({"sampler": "keyed", "store": "shared", "workers": 2, "nproc": 4, "tail": "pad"})
    'keyed + shared, 4 ranks, 2 workers'
    """
    names = [name for name in (*_FLAGS[2:], "framework") if name in row and _is_telling(name, row[name])]
    first = f"{_short(row['sampler'])} + {row['store']}"
    return ", ".join([first, *(_words(name, row[name]) for name in names)])


def _is_telling(name: str, value: Any) -> bool:
    return not pd.isna(value) and (name in _ALWAYS_SAID or value != _DEFAULTS[name])


def _words(name: str, value: Any) -> str:
    plain = name.replace("_", " ")
    if isinstance(_DEFAULTS[name], bool):
        return plain if value else f"no {plain}"
    words = _WORDS.get(name, plain + " {}").format(_short(value))
    return words.removesuffix("s") if value == 1 else words


def _short(value: Any) -> Any:
    """Without the folder, where it is the path of a file."""
    return value.rsplit("/", 1)[-1] if isinstance(value, str) else value


def labelled(frame: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """``frame``, which has ``run_id`` (``nodes``, ``ranks``), with a first column ``label``: its run's configuration.

    Where ``runs`` lacks the run, because it died before its row, the label is the ``run_id``.
    """
    keys = differing(runs)
    names = {row["run_id"]: label(row) for row in runs[["run_id", *keys]].to_dict("records")}
    rest = frame.drop(columns="label", errors="ignore")
    rest.insert(0, "label", [names.get(run_id, run_id) for run_id in frame["run_id"]])
    return rest


def machines(runs: pd.DataFrame) -> pd.DataFrame:
    """The machines and versions of ``runs``: the distinct rows of MACHINE, each with its number of ``runs``.

    More than one row: the figures are not to be compared with each other.
    """
    described = runs.reindex(columns=list(MACHINE))
    return described.groupby(list(MACHINE), dropna=False, sort=False).size().rename("runs").reset_index()


def measured(runs: pd.DataFrame, column: str) -> pd.Series[float]:
    """The known values of a column as floats, with the index of ``runs``; none where there is no such column."""
    if column not in runs:
        return pd.Series(dtype="float64")
    return runs[column].dropna().astype("float64")


def _summary(group: pd.DataFrame) -> dict[str, Any]:
    kept = group[group["status"].isin(ENDED_WELL)]
    audits = int((kept["status"] == "audit").sum())
    row: dict[str, Any] = {"n": len(kept), "failed": len(group) - len(kept), "audit": audits}
    for name in FIGURES:
        of = kept[kept["status"] == "ok"] if name == "samples_per_s" else kept
        row[name], row[f"{name}_low"], row[f"{name}_high"] = _median(measured(of, name))
    for name in ("copies_low", "copies_high"):
        row[name] = measured(kept, name).median()
    for name in COUNTERS:
        values = measured(kept, name)
        row[name] = int(values.max()) if len(values) else pd.NA
    return row


def _median(values: pd.Series[float]) -> tuple[float | None, float | None, float | None]:
    """Median and bounds, as far as there are some."""
    if values.empty:
        return None, None, None
    median = Median.of(values.tolist())
    return median.value, median.low, median.high

"""The results folder as typed pandas frames.

``pandas.read_csv`` reads the files as well; this adds types (whole numbers with gaps stay whole, hashes stay
text, times are times), the columns of a file that is not there, and the join of ranks with their runs.
"""

from __future__ import annotations

import dataclasses
import io
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from shardlab.config import RunConfig
from shardlab.csvlog import whole_lines
from shardlab.errors import RunFailed
from shardlab.records import Measured, MemoryRecord, NodeRecord, RankRecord, RunRecord, StepRecord

ENVIRONMENT: dict[str, type] = {
    "git_sha": str, "git_dirty": bool, "python": str, "torch": str, "accelerate": str, "numpy": str,
    "kernel": str, "system": str, "cpu": str, "cores": int, "ram_bytes": int, "cgroup_version": int,
    "cgroup_limit_bytes": int, "cgroup_cpus": float, "thp": str, "omp_num_threads": str, "load_1m": float,
    "hostname": str, "argv": str,
}
"""The columns of ``runs.csv`` that describe the machine and the software; OMP_NUM_THREADS may be a list."""

_RECORDS: dict[str, type] = {
    "runs": RunRecord, "nodes": NodeRecord, "ranks": RankRecord, "memory": MemoryRecord, "training": StepRecord,
}


@dataclass(frozen=True)
class Results:
    """One frame for each file; ``shardlab/dictionary.md`` is the dictionary of their columns."""

    runs: pd.DataFrame
    nodes: pd.DataFrame
    ranks: pd.DataFrame
    memory: pd.DataFrame
    training: pd.DataFrame

    def joined(self) -> pd.DataFrame:
        """A row for each rank and epoch with the columns of its run.

        Where both have a column (``delivered``, ``samples_per_s``), that of the run ends in ``_run``.
        """
        return self.ranks.merge(
            self.runs, on="run_id", how="left", suffixes=("", "_run"), validate="many_to_one"
        )


def load(folder: str | Path, *, all_versions: bool = False) -> Results:
    """Read the five files of a results folder; a file that is not there is an empty frame with its columns.

    ``all_versions`` adds the rows of files that were moved aside because their header changed
    (``runs.1.csv`` is older than ``runs.2.csv``), with gaps where a version lacks a column.
    Raises RunFailed where a cell is not of its column's type, naming file, column and value.
    """
    frames = {name: _read(Path(folder), name, columns(name), all_versions) for name in _RECORDS}
    return Results(**frames)


def columns(name: str) -> dict[str, type]:
    """Columns of ``runs``, ``nodes``, ``ranks``, ``memory`` or ``training``, in order, each with its type.

    >>> columns("ranks")["order_hash"]
    <class 'str'>
    """
    if name != "runs":
        return _fields(_RECORDS[name])
    run = _fields(RunRecord)
    nested = {"config": _fields(RunConfig), "measured": _fields(Measured), "environment": ENVIRONMENT}
    flat: dict[str, type] = {}
    for field, kind in run.items():
        flat.update(nested.get(field, {field: kind}))
    return flat


def _fields(record: type) -> dict[str, type]:
    hints = typing.get_type_hints(record)
    return {field.name: _plain(hints[field.name]) for field in dataclasses.fields(record)}


def _plain(hint: Any) -> type:
    """``int | None`` is int, a Literal of strings is str; a nested record is left as it is."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        return type(typing.get_args(hint)[0])
    plain: type = typing.get_origin(hint) or hint
    return plain


def _read(folder: Path, name: str, kinds: dict[str, type], all_versions: bool) -> pd.DataFrame:
    files = [*(_moved(folder, name) if all_versions else []), folder / f"{name}.csv"]
    frames = [_typed(_text(file), kinds, file) for file in files]
    filled = [frame for frame in frames if len(frame)] or frames[-1:]
    return pd.concat(filled, ignore_index=True)


def _moved(folder: Path, name: str) -> list[Path]:
    numbered = [file for file in folder.glob(f"{name}.*.csv") if file.name.split(".")[1].isdigit()]
    return sorted(numbered, key=lambda file: int(file.name.split(".")[1]))


def _text(file: Path) -> pd.DataFrame:
    content = whole_lines(file)
    if not content:
        return pd.DataFrame()
    try:
        return pd.read_csv(io.BytesIO(content), dtype="string", keep_default_na=False, na_values=[""])
    except ValueError as error:  # UnicodeDecodeError and those of pandas among them
        raise RunFailed(f"{file} must be a table, UTF-8 and comma-separated: {error}") from error


def _typed(text: pd.DataFrame, kinds: dict[str, type], file: Path) -> pd.DataFrame:
    """Known columns first, in order and typed; columns of another version after them, as text."""
    names = [*kinds, *(name for name in text.columns if name not in kinds)]
    text = text.reindex(columns=names).astype("string")
    return pd.DataFrame({name: _column(text[name], kinds.get(name, str), file) for name in names})


def _column(text: pd.Series[str], kind: type, file: Path) -> pd.Series[Any]:
    try:
        if text.name == "started_at":
            return pd.to_datetime(text, utc=True, format="ISO8601")
        return _CONVERT[kind](text)
    except (ValueError, OverflowError) as error:
        raise RunFailed(f"{file}: column {text.name} must hold {kind.__name__} values: {error}") from error


def _booleans(text: pd.Series[str]) -> pd.Series[Any]:
    unknown = set(text.dropna()) - {"true", "false"}
    if unknown:
        raise ValueError(f"neither true nor false: {sorted(unknown)}")
    return (text == "true").astype("boolean")  # a gap stays a gap


_CONVERT: dict[type, Callable[[pd.Series[str]], pd.Series[Any]]] = {
    int: lambda text: text.astype("Int64"),
    float: lambda text: text.astype("Float64").astype("float64"),  # by way of Float64, which reads gaps
    bool: _booleans,
    str: lambda text: text,
}

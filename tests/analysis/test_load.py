"""Results come back with their types, whatever is missing, torn or of another version."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from shardlab.analysis import load
from shardlab.analysis.load import ENVIRONMENT, columns
from shardlab.config import RunConfig
from shardlab.csvlog import append
from shardlab.errors import RunFailed
from shardlab.explain import DICTIONARY
from shardlab.records import SCHEMA_VERSION, Measured, RankRecord, RunRecord


def run(run_id: str, **measured: Any) -> RunRecord:
    unknown: dict[str, Any] = dict.fromkeys(ENVIRONMENT)
    environment = {**unknown, "git_dirty": True, "cores": 2, "load_1m": 0.5}
    started_at = "2026-03-01T12:00:00+02:00"
    return RunRecord(SCHEMA_VERSION, run_id, started_at, None, 0, RunConfig(), Measured(**measured), environment)


def rank(run_id: str, rank: int, **values: Any) -> RankRecord:
    blank = dict.fromkeys(field.name for field in dataclasses.fields(RankRecord))
    known = {"epoch": 0, "node": "n", "pid": 1, "delivered": 5, "steps": 1, "wait_s": 0.25, "other_s": 0.0}
    return RankRecord(**{**blank, **known, "run_id": run_id, "rank": rank, **values})


def test_a_folder_without_files_gives_empty_frames_with_their_columns(tmp_path: Path) -> None:
    results = load(tmp_path)
    for name in ("runs", "nodes", "ranks", "memory", "training"):
        frame = getattr(results, name)
        assert len(frame) == 0
        assert list(frame.columns) == list(columns(name))
    assert results.ranks["delivered"].dtype == "Int64"


def test_columns_are_those_of_the_file(tmp_path: Path) -> None:
    append(tmp_path, "runs.csv", [run("a")])
    append(tmp_path, "ranks.csv", [rank("a", 0)])
    for name in ("runs", "ranks"):
        assert list(columns(name)) == (tmp_path / f"{name}.csv").read_text().splitlines()[0].split(",")


def test_each_column_has_its_type(tmp_path: Path) -> None:
    append(tmp_path, "runs.csv", [run("a", copies=4.25, delivered=2**53 + 1), run("b")])
    runs = load(tmp_path).runs
    assert runs["delivered"].tolist() == [2**53 + 1, pd.NA]
    assert runs["copies"].dtype == "float64"
    assert runs["copies"][0] == 4.25
    assert runs["shuffle"].dtype == "boolean"
    assert runs["shuffle"].tolist() == [True, True]
    assert runs["pin_memory"].tolist() == [False, False]
    assert runs["git_dirty"].tolist() == [True, True]
    assert runs["max_steps"].isna().all()
    assert runs["sampler"].tolist() == ["distributed", "distributed"]
    assert runs["started_at"][0] == pd.Timestamp("2026-03-01T10:00:00Z")


@pytest.mark.parametrize("order_hash", ["0123", "1e5", "18446744073709551615", "NA"])
def test_a_hash_stays_text(tmp_path: Path, order_hash: str) -> None:
    append(tmp_path, "ranks.csv", [rank("a", 0, order_hash=order_hash), rank("a", 1)])
    read = load(tmp_path).ranks["order_hash"]
    assert read[0] == order_hash
    assert read.isna().tolist() == [False, True]


def test_ranks_are_joined_with_their_run(tmp_path: Path) -> None:
    append(tmp_path, "runs.csv", [run("a", delivered=10), run("b", delivered=5)])
    append(tmp_path, "ranks.csv", [rank("b", 0), rank("a", 0), rank("a", 1)])
    joined = load(tmp_path).joined()
    assert joined["delivered"].tolist() == [5, 5, 5]
    assert joined["delivered_run"].tolist() == [5, 10, 10]
    assert joined["sampler"].notna().all()


def test_ranks_of_a_run_that_died_without_its_row_are_kept(tmp_path: Path) -> None:
    append(tmp_path, "ranks.csv", [rank("a", 0)])
    assert len(load(tmp_path).joined()) == 1


def test_a_row_being_written_is_left_out(tmp_path: Path) -> None:
    append(tmp_path, "ranks.csv", [rank("a", 0)])
    with (tmp_path / "ranks.csv").open("a") as file:
        file.write("a,0,")
    assert load(tmp_path).ranks["rank"].tolist() == [0]


def test_older_files_are_read_when_asked_for(tmp_path: Path) -> None:
    @dataclass
    class Old:
        run_id: str
        retired: str

    append(tmp_path, "ranks.csv", [Old("old", "x")])
    append(tmp_path, "ranks.csv", [rank("new", 0)])
    assert load(tmp_path).ranks["run_id"].tolist() == ["new"]
    ranks = load(tmp_path, all_versions=True).ranks
    assert ranks["run_id"].tolist() == ["old", "new"]
    assert ranks["rank"].tolist() == [pd.NA, 0]
    assert ranks["rank"].dtype == "Int64"
    assert ranks["retired"].tolist() == ["x", pd.NA]


def test_older_files_come_in_the_order_they_were_moved_in(tmp_path: Path) -> None:
    for n in range(1, 12):
        (tmp_path / f"nodes.{n}.csv").write_text(f"run_id\nrun{n}\n")
    assert load(tmp_path, all_versions=True).nodes["run_id"].tolist() == [f"run{n}" for n in range(1, 12)]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("nproc", "two"), ("nproc", "99999999999999999999"), ("copies", "four"), ("shuffle", "yes"),
        ("started_at", "?"),
    ],
)
def test_a_cell_of_another_type_is_named(tmp_path: Path, column: str, cell: str) -> None:
    (tmp_path / "runs.csv").write_text(f"{column}\n{cell}\n")
    with pytest.raises(RunFailed, match=rf"runs\.csv: column {column} "):
        load(tmp_path)


def documented(name: str) -> list[str]:
    """First cells, in backquotes, of the table lines under the heading of one file."""
    section = DICTIONARY.read_text().split(f"\n## {name}.csv\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("name", ["runs", "nodes", "ranks", "memory", "training"])
def test_the_dictionary_has_every_column_in_order_and_no_other(name: str) -> None:
    assert documented(name) == list(columns(name))


def test_every_line_of_the_dictionary_is_filled_in() -> None:
    for line in re.findall(r"^\| `\w+` \|.*$", DICTIONARY.read_text(), re.MULTILINE):
        _, _, _unit, meaning, empty, _ = (cell.strip() for cell in line.split("|"))
        assert meaning, line
        assert empty, line

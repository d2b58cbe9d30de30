"""Runs that folders hold already: which are compared with which, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from rows_by_hand import Row, held, turns

from shardlab import compare
from shardlab.comparing.judging import answered
from shardlab.comparing.matrix import CompareConfig
from shardlab.comparing.past import past_groups
from shardlab.config import RunConfig
from shardlab.errors import UsageError

KEYED = turns("keyed", "shared", [500, 510, 490, 500, 500], **held(1.0))
SLOWER = turns("keyed", "shared", [100, 101, 99, 100, 100], **held(1.0))
PRIVATE = turns("distributed", "private", [100, 110, 90, 100, 100], **held(4.0))


def folder(path: Path, *rows: Row) -> str:
    path.mkdir(parents=True)
    with (path / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def grouped(*folders: str, given: set[str] = frozenset(), **flags: object):  # type: ignore[no-untyped-def, assignment]
    return past_groups(folders, CompareConfig(), RunConfig(**flags), set(given))  # type: ignore[arg-type]


def test_one_folder_is_compared_within_itself(tmp_path: Path):
    groups, against = grouped(folder(tmp_path / "a", *KEYED, *PRIVATE))
    assert {name: len(rows) for name, rows in groups.items()} == {"keyed + shared": 5, "distributed + private": 5}
    assert against == {}


def test_of_two_folders_each_is_held_against_the_same_one_of_the_first(tmp_path: Path):
    before = folder(tmp_path / "before", *KEYED, *PRIVATE)
    after = folder(tmp_path / "after", *[row | {"comparison": "d"} for row in (*SLOWER, *PRIVATE)])
    groups, against = grouped(before, after)
    assert against["keyed + shared (after)"] == "keyed + shared (before)"
    wanted = CompareConfig(min_ratio=0.9, of="x")
    answer = answered(groups, against, wanted)
    failed = [gate.name for gate in answer.held if not gate.passed]
    assert (answer.code, failed) == (4, ["keyed + shared (after)"])


def test_folders_of_the_same_name_are_told_apart(tmp_path: Path):
    groups, _ = grouped(folder(tmp_path / "x" / "res", *KEYED), folder(tmp_path / "y" / "res", *SLOWER))
    assert len(groups) == 2


def test_the_same_folder_twice_is_refused(tmp_path: Path):
    one = folder(tmp_path / "a", *KEYED)
    with pytest.raises(UsageError, match="different folders"):
        grouped(one, f"{one}/")


def test_rows_that_differ_elsewhere_are_refused_and_the_cure_works(tmp_path: Path):
    other = [row | {"nproc": "2"} for row in SLOWER]
    one = folder(tmp_path / "a", *KEYED, *other)
    with pytest.raises(UsageError, match=r"--nproc.*Cure: choose with --nproc 2"):
        grouped(one)
    groups, _ = grouped(one, given={"nproc"}, nproc=2)
    assert len(groups["keyed + shared"]) == 5


def test_stores_start_methods_are_their_own_affair(tmp_path: Path):
    forked = [row | {"start_method": "fork", "store": "inherited"} for row in PRIVATE]
    groups, _ = grouped(folder(tmp_path / "a", *KEYED, *forked))
    assert len(groups) == 2


def test_files_of_somebody_else_are_refused_by_what_they_lack(tmp_path: Path):
    with pytest.raises(UsageError, match=r"without .*status"):
        grouped(folder(tmp_path / "a", {"run": "1"}))


@pytest.mark.parametrize(("least", "code"), [("0.9", 0), ("6", 4)])
def test_the_command_compares_what_is_there_and_runs_nothing(
    least: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    one = folder(tmp_path / "a", *PRIVATE, *KEYED)
    assert compare.main(["--of", one, "--baseline", "distributed", "--min-ratio", least]) == code
    said = capsys.readouterr().out
    assert "Use keyed + shared: it holds one copy" in " ".join(said.split())
    assert "5.00 times" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-copies", "1.1", "--no-control"], "--max-copies needs the control run"),
        (["--min-ratio", "0.9", "--repeats", "4"], "--min-ratio needs an interval"),
    ],
)
def test_gates_that_could_never_be_decided_are_refused_before_anything_runs(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert compare.main(flags) == 2
    assert said in capsys.readouterr().err

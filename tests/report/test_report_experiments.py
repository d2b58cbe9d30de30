"""A folder with the CSV files of experiments is reported on file by file, whatever their columns are."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from command import code_of
from shardlab import report
from shardlab.reporting import experiment_table, sources
from shardlab.reporting.experiments_page import page, sentences
from shardlab.reporting.parts import Commands, Image, Picture, Table, Text

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)
RATIOS = pd.DataFrame(
    {
        "name": ["ring / dispatch", "keyed / distributed", "unknown"],
        "ratio": [30.0, 0.9, None],
        "low": [25.0, 0.8, None],
        "high": [35.0, 1.1, None],
        "target": [20.0, 1.3, None],
    }
)


def published(path: Path, *, hostname: str = "a") -> Path:
    folder = path / "published"
    folder.mkdir()
    made = {"hostname": "a", "torch": "2.14", "argv": "python experiments/speed.py"}
    RATIOS.assign(a_flags=["--sampler ring", "", ""], **made).to_csv(folder / "speed.csv", index=False)
    (folder / "claims.png").write_bytes(PIXEL)
    (folder / "experiments").mkdir()
    (folder / "experiments" / "speed.py").write_text('"""How much faster is\n`ring`?\n\nMore.\n"""\n')
    claims = {"claim": ["One copy is kept."], "answer": ["false: four"], "copies": [4.0], "copies_low": [3.9],
              "copies_high": [4.1], "inside": [True]}  # fmt: skip
    pd.DataFrame({**claims, **made, "hostname": hostname}).to_csv(folder / "claims.csv", index=False)
    return folder


def test_claims_come_first_and_every_file_has_its_question_table_and_picture(tmp_path: Path) -> None:
    made = page(published(tmp_path), "t")
    assert made.verdict[0] == "One copy is kept: false: four."
    assert [section.title for section in made.sections] == ["claims", "speed", "Environment"]
    assert [type(part) for part in made.sections[0].parts] == [Image, Table, Commands]
    parts = made.sections[1].parts
    assert [type(part) for part in parts] == [Text, Picture, Table, Text, Commands]
    assert parts[0] == Text("How much faster is ring?")
    assert parts[3] == Text("Only in speed.csv: the columns a_flags.")
    assert parts[4] == Commands((("python experiments/speed.py", ""),))


def test_intervals_stand_beside_their_value_and_the_environment_is_said_once(tmp_path: Path) -> None:
    claims, speed, environment = page(published(tmp_path), "t").sections
    table = next(part for part in claims.parts if isinstance(part, Table))
    assert table.head == ("claim", "answer", "copies", "inside")
    assert table.rows == (("One copy is kept.", "false: four", "4 (3.9 to 4.1)", "yes"),)
    table = next(part for part in speed.parts if isinstance(part, Table))
    assert table.head == ("name", "ratio", "target")
    assert table.rows[1:] == (("keyed / distributed", "0.9 (0.8 to 1.1)", "1.3"), ("unknown", "-", "-"))
    told = [part for part in environment.parts if isinstance(part, Table)]
    assert [row for table in told for row in table.rows] == [("torch", "2.14"), ("hostname", "a")]


def test_bounds_are_found_by_their_names_and_what_never_changes_is_said_once() -> None:
    frame = pd.DataFrame(
        {
            "name": ["ring, fork", "ring, spawn"], "how": ["fork", "spawn"], "first_s": [1.0, 2.0],
            "first_low_s": [0.5, 1.5], "first_high_s": [1.5, 2.5], "peak": [10, 20], "low": [9, 19], "high": [11, 21],
            "ranks": [4, 4], "hostname": ["a", "a"],
        }
    )  # fmt: skip
    table, said = experiment_table.parts("x.csv", frame)
    assert isinstance(table, Table)
    assert table.head == ("name", "how", "first s", "peak")
    assert table.rows[1] == ("ring, spawn", "spawn", "2 (1.5 to 2.5)", "20 (19 to 21)")
    assert said == Text("In every row: ranks 4.")


def test_files_of_two_machines_are_said_loudly(tmp_path: Path) -> None:
    made = page(published(tmp_path, hostname="b"), "t")
    assert "2 different machines" in made.verdict[-1]
    assert any(isinstance(part, Text) and part.loud for part in made.sections[-1].parts)


def test_a_file_that_does_not_say_where_it_was_made_is_of_no_other_machine(tmp_path: Path) -> None:
    folder = published(tmp_path)
    RATIOS.to_csv(folder / "plain.csv", index=False)
    RATIOS.assign(hostname="a").to_csv(folder / "little.csv", index=False)
    made = page(folder, "t")
    assert not any("machines" in sentence for sentence in made.verdict)
    (told,) = made.sections[-1].parts
    assert isinstance(told, Table)
    assert told.rows == (("hostname", "a"),)
    assert told.caption.startswith("Environment of 7 rows")


def test_an_empty_file_is_left_out_and_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = published(tmp_path)
    (folder / "torn.csv").touch()
    made = page(folder, "t")
    assert [section.title for section in made.sections] == ["claims", "speed", "Environment"]
    assert made.made_from == "From 4 rows of 2 CSV files. Left out, because empty: torn.csv."
    (tmp_path / "all.csv").touch()
    assert code_of(report.main, str(tmp_path)) == 2
    assert "but got 'all.csv, empty'" in capsys.readouterr().err


def test_an_experiment_whose_name_begins_with_runs_is_no_file_of_runs(tmp_path: Path) -> None:
    RATIOS.to_csv(tmp_path / "runs_by_start.csv", index=False)
    assert [section.title for section in sources.page(tmp_path, None).sections] == ["runs by start"]


def test_a_claim_of_several_rows_is_told_once() -> None:
    claims = pd.DataFrame({"name": list("abcd"), "claim": "One copy.", "answer": [True, False, True, None]})
    assert list(sentences("claims", claims)) == ["One copy: yes in 2 of 3; no with b."]
    assert list(sentences("claims", claims.assign(answer=True))) == ["One copy: yes in all 4 configurations."]
    assert list(sentences("claims", claims.head(1))) == ["One copy: yes."]
    many = pd.DataFrame({"name": list("abcdefghi"), "claim": "It fits", "answer": ["true"] * 5 + ["false"] * 4})
    assert list(sentences("claims", many)) == ["It fits: true in 5 of 9; false with f, g, h, and 1 more."]


def test_ratios_are_told_with_their_ends_and_their_targets() -> None:
    assert list(sentences("speed", RATIOS)) == [
        "speed: 2 ratios, from 0.900 (0.800 to 1.10) for keyed / distributed to 30.0 (25.0 to 35.0) for ring / "
        "dispatch. 1 of 2 reach their target. Not so: keyed / distributed (0.9 for 1.3)."
    ]
    costs = RATIOS.head(1).rename(columns={"target": "limit"}).assign(limit=31.0)
    assert next(sentences("cost", costs)).endswith("for ring / dispatch. All 1 keep to their limit.")


def test_long_and_wide_files_are_cut_and_say_so() -> None:
    columns = {f"c{number:02}": range(number, number + 100) for number in range(13)}
    wide = pd.DataFrame({**columns, "b": "x", "b_low": 1.0, "b_high": 2.0}).assign(b=range(100))
    table, left = experiment_table.parts("wide.csv", wide)
    assert isinstance(table, Table)
    assert isinstance(left, Text)
    assert table.head == (*(f"c{number:02}" for number in range(9)), "b")  # what has an interval stays
    assert left.text == f"Only in wide.csv: {100 - len(table.rows)} rows and the columns c09, c10, c11 and c12."


def test_a_file_without_a_table_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torn.csv").write_text('a,b\n1,2\n3,"4\n1,2,3,4,5')
    assert code_of(report.main, str(tmp_path), "-o", str(tmp_path / "x.html")) == 1
    assert "torn.csv: is no CSV file that can be read" in capsys.readouterr().err
    assert code_of(report.main, str(tmp_path), "--last", "1") == 2
    assert "which has none" in capsys.readouterr().err

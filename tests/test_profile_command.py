"""The command's manners: what is wrong is said in a sentence, with the rule, the value and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import code_of, profile
from shardlab import profile as command
from shardlab.__main__ import main as shardlab
from shardlab.world import JOIN_VARIABLES


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not a rank of anything, in a folder of its own."""
    for name in JOIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


WRONG = [
    ("--sampler nonsense", ["--sampler must name a data path", "'nonsense'", "accelerate-shard", "file.py:"]),
    ("--store nonsense", ["--store must name a store", "'nonsense'", "auto, inherited, mmap"]),
    ("--dataset nonsense", ["--dataset must name a dataset", "'nonsense'", "synthetic:SIZE"]),
    ("--dataset absent.npy", ["must name a .npy file that exists", "'absent.npy'"]),
    ("--tail nonsense", ["--tail", "nonsense", "pad", "drop", "keep"]),
    ("--compute fast", ["--compute must be a known kind of work", "'fast'", "5ms", "cnn"]),
    ("--device tpu", ["--device must be a known device", "'tpu'", "auto, cpu, cuda"]),
    ("--nproc 0", ["--nproc must be at least 1", "0"]),
    ("--nproc two", ["--nproc", "two"]),
    ("--batch-size -1", ["--batch-size must be at least 1", "-1"]),
    ("--epochs 0", ["--epochs must be at least 1", "0"]),
    ("--workers -1", ["--workers must be at least 0", "-1"]),
    ("--max-steps 0", ["--max-steps must be at least 1", "0"]),
    ("--nonsense", ["--nonsense"]),
    (
        "--sampler distributed --store reader",
        ["every rank reads", "'reader'", "private", "Cure: use --store"],
    ),
    ("--sampler distributed --tail keep", ["--sampler distributed can do", "'keep'", "pad, drop"]),
    ("--sampler accelerate --tail keep", ["--sampler accelerate can do", "'keep'", "pad, drop"]),
    ("--sampler a.b:c --store reader", ["--sampler a.b:c", "'reader'", "private, inherited, shared, mmap"]),
    (
        "--store inherited --start-method spawn",
        ["--store inherited needs --start-method fork", "'spawn'", "Cure: leave --start-method out"],
    ),
    ("--sampler sharded", ["--sampler sharded reads a folder of shards", "Cure: write one first"]),
]


@pytest.mark.parametrize(("flags", "parts"), WRONG, ids=[flags for flags, _ in WRONG])
def test_wrong_usage_exits_with_2_and_names_rule_value_and_choices(
    flags: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(command.main, *flags.split(), "--dry-run") == 2
    printed = capsys.readouterr()
    said = " ".join(printed.err.split())
    assert not [part for part in parts if part not in said], said
    assert printed.out == ""
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("dataset", "parts"),
    [
        ("synthetic:5:0", ["SHAPE must be numbers of at least 1", "'0'", "3x224x224"]),
        ("synthetic:5:3:int7", ["DTYPE must be known", "'int7'", "float32"]),
        ("synthetic:many", ["SIZE must be a number of bytes", "'many'"]),
    ],
)
def test_wrong_arguments_of_a_dataset_exit_with_2_before_any_rank_starts(
    dataset: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(command.main, "--dataset", dataset) == 2
    printed = capsys.readouterr()
    (said,) = printed.err.splitlines()
    assert not [part for part in parts if part not in said], said
    assert printed.out == ""


@pytest.mark.parametrize("present", [("RANK",), ("WORLD_SIZE",), ("RANK", "LOCAL_RANK")])
def test_some_of_a_launchers_variables_are_not_enough_to_join(
    present: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in present:
        monkeypatch.setenv(name, "1")
    assert code_of(command.main) == 2
    said = capsys.readouterr().err
    assert "RANK, LOCAL_RANK, WORLD_SIZE must be set together" in said
    assert f"only {', '.join(present)}" in said
    assert "Cure: start with torchrun" in said
    assert f"unset {', '.join(present)}" in said


def test_nothing_is_written_by_wrong_usage(tmp_path: Path) -> None:
    assert code_of(command.main, "--sampler", "nonsense") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_would_run_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(command.main, "--dry-run", "--store", "inherited") == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["store"], lines["start_method"], lines["sampler"]) == ("inherited", "fork", "distributed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--prefetch-factor 3", "there are no workers"),
        ("--persistent-workers", "there are no workers"),
        ("--worker-start-method spawn", "there are no workers"),
        ("--sampler accelerate --no-even-batches", "never looks at it"),
        ("--device cpu --pin-memory", "nothing is copied to an accelerator"),
    ],
)
def test_a_flag_without_effect_is_said_aloud(
    flags: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(command.main, "--dry-run", *flags.split()) == 0
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Note: "))
    name = next(word for word in reversed(flags.split()) if word.startswith("--"))
    assert name.removeprefix("--").removeprefix("no-") in note
    assert why in note


def test_help_lists_every_sampler_and_store_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(command.main, "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    for name in ("distributed", "accelerate-shard", "sharded", "inherited", "reader", "mmap", "synthetic"):
        assert f"{name}: " in said or f"{name}:" in said


def test_shardlab_without_a_command_lists_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["shardlab", "nonsense"])
    assert shardlab() == 2
    printed = capsys.readouterr()
    assert "no command 'nonsense'" in printed.err
    assert "profile" in printed.err
    assert printed.out == ""


def test_json_alone_is_on_stdout_whatever_a_dataset_prints(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "print('imported')\n\n\ndef data():\n    print('built')\n    return [[0.0, 1.0]] * 40\n"
    )
    flags = ("--dataset", f"{tmp_path}/loud.py:data", "--start-method", "fork", "--no-shuffle")
    ended = profile(*flags, results=tmp_path / "results")
    assert (ended.row["distinct"], ended.row["missing"]) == (40, 0)
    assert [rank["rank"] for rank in ended.row["ranks"]] == [0, 1]


@pytest.mark.slow
def test_repeats_are_a_list_of_objects_and_a_row_each(tmp_path: Path) -> None:
    flags = ("--dataset", "synthetic:n=40:8", "--start-method", "fork", "--repeats", "2", "--warmup", "0")
    ended = profile(*flags, results=tmp_path / "results")
    assert ended.code == 0, ended.stderr
    ids = [run["run_id"] for run in ended.object]
    assert len(set(ids)) == 2
    rows = (tmp_path / "results" / "runs.csv").read_text().splitlines()[1:]
    assert len(rows) == 2
    assert json.dumps(ids[0]).strip('"') in rows[0]

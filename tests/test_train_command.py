"""``python -m shardlab.train`` as a user starts it: what it prints, what it keeps, what it refuses and how."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import trainees
from by_hand import outcome, report
from command import code_of, train
from shardlab import train as command
from shardlab.config import RunConfig
from shardlab.engine.report import EpochReport, Learned, load_reports
from shardlab.local import as_object
from shardlab.trainconfig import TrainConfig, resolve_training
from shardlab.verdict import verdict
from shardlab.world import JOIN_VARIABLES
from trainees import named


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not a rank of anything, in a folder of its own."""
    for name in JOIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


WRONG = [
    (
        "--framework nonsense",
        ["--framework must name a framework", "'nonsense'", "auto, accelerate, ddp", "single"],
    ),
    (
        "--framework single --nproc 2",
        ["--framework single trains one rank", "2", "Cure: use --framework ddp"],
    ),
    (
        "--model nonsense",
        ["--model must name a model", "'nonsense'", "cnn, package.module:factory, file.py:"],
    ),
    ("--compute 5ms", ["--compute is for shardlab.profile", "'5ms'", "the model computes"]),
    ("--checkpoint-every 5", ["--checkpoint-every needs a folder", "Cure: add --checkpoint DIR"]),
    ("--checkpoint d --checkpoint-every 0", ["--checkpoint-every must be at least 1", "0"]),
    (
        "--sampler keyed --tail keep --checkpoint d --checkpoint-every 5",
        [
            "--checkpoint-every needs ranks with equally many steps",
            "'--tail keep'",
            "pad, drop",
            "Cure: leave",
        ],
    ),
    ("--lr 0", ["--lr must be more than 0", "0"]),
    ("--lr-decay -1", ["--lr-decay must be more than 0", "-1"]),
    ("--lr-scaling cubic", ["--lr-scaling", "cubic", "none", "linear", "sqrt"]),
    ("--accumulation 0", ["--accumulation must be at least 1", "0"]),
    ("--dtype float16", ["--dtype", "float16", "float32", "float64"]),
    ("--sampler nonsense", ["--sampler must name a data path", "'nonsense'"]),
]


@pytest.mark.parametrize(("flags", "parts"), WRONG, ids=[flags for flags, _ in WRONG])
def test_wrong_usage_exits_with_2_and_names_rule_value_and_choices(
    flags: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(command.main, *flags.split()) == 2
    printed = capsys.readouterr()
    said = " ".join(printed.err.split())
    assert not [part for part in parts if part not in said], said
    assert printed.out == ""
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("nproc", "given", "resolved"), [(1, "auto", "single"), (2, "auto", "ddp"), (1, "ddp", "ddp")]
)
def test_who_trains_follows_from_the_number_of_ranks(nproc: int, given: str, resolved: str) -> None:
    assert resolve_training(TrainConfig(framework=given), RunConfig(warmup=0), nproc).framework == resolved


@pytest.mark.parametrize(
    ("dataset", "given", "resolved"),
    [
        ("mnist", "auto", "mnist:test"),
        ("fashion-mnist", "auto", "fashion-mnist:test"),
        ("file.py:data", "auto", "none"),
        ("mnist", "file.py:data", "file.py:data"),
        ("mnist", "none", "none"),
    ],
)
def test_what_is_evaluated_follows_from_what_is_trained_on(dataset: str, given: str, resolved: str) -> None:
    config = RunConfig(dataset=dataset, warmup=0)
    assert resolve_training(TrainConfig(eval_dataset=given), config, 2).eval_dataset == resolved


def test_a_dry_run_says_what_would_be_trained_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(command.main, "--dry-run", "--epochs", "3") == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["framework"], lines["dataset"], lines["batch_size"]) == ("ddp", "mnist", "64")
    assert (lines["eval_dataset"], lines["epochs"], lines["warmup"]) == ("mnist:test", "3", "0")
    assert list(tmp_path.iterdir()) == []


def test_help_lists_every_framework_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(command.main, "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert not [name for name in ("single: ", "ddp: ", "accelerate: ") if name not in said]


def test_what_it_came_to_is_printed_and_kept(tmp_path: Path) -> None:
    """101 samples on two ranks in batches of ten are six steps, the last of them padded."""
    results = tmp_path / "results"
    ended = train(
        "--dataset", named("images_101"), "--eval-dataset", named("images_43"), "--sampler", "keyed",
        "--batch-size", 10, "--epochs", 2, "--start-method", "fork", results=results,
    )  # fmt: skip
    found, run_id = ended.row, ended.row["run_id"]
    assert (found["framework"], found["steps"], found["missing"], found["status"]) == ("ddp", 12, 0, "ok")
    assert 0 <= found["accuracy"] <= 1
    assert round(found["accuracy"] * 43, 6).is_integer()
    kept = rows(results, "training.csv")
    assert [(row["run_id"], row["epoch"], row["step"]) for row in kept] == [
        (run_id, str(epoch), str(step)) for epoch in range(2) for step in range(6)
    ]
    assert found["loss"] == pytest.approx(np.mean([float(row["loss"]) for row in kept[6:]]))
    assert [row["learning_rate"] for row in kept[::6]] == ["0.001", "0.0007"]
    files = {f"{run_id}-{rank}-{epoch}.npy" for rank in range(2) for epoch in range(2)}
    assert {file.name for file in (results / "ledger").iterdir()} == files
    for epoch in range(2):
        got = [np.load(results / "ledger" / f"{run_id}-{rank}-{epoch}.npy") for rank in range(2)]
        assert set(np.concatenate(got).tolist()) == set(range(101))
    assert f"Accuracy {found['accuracy']:.4f} on the 43 labels of " in ended.said
    assert [(rank["epoch"], rank["rank"]) for rank in found["ranks"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (
            ["--dataset", named("triples"), "--model", named("small")],
            ["a batch to train on must be (inputs, labels)", "'list of 3'", "Cure: a dataset of pairs"],
        ),
        pytest.param(
            ["--dataset", "records:100"],
            [
                "--model cnn needs samples (image, label)",
                "a first item of shape ()",
                "Cure: give a model of your",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--model", named("no_module")],
            ["--model must make a torch.nn.Module", "'int'"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--eval-dataset", "nonsense"], ["must name a dataset", "'nonsense'"], marks=pytest.mark.slow
        ),
        pytest.param(
            ["--resume", "nowhere"],
            ["a folder with a finished checkpoint in it", "'nowhere'", "Cure: name the folder"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["triples", "records", "no module", "evaluation", "resume"],
)
def test_what_only_ranks_can_see_exits_with_2_too(flags: list[str], parts: list[str], tmp_path: Path) -> None:
    plain = ["--dataset", named("images_43"), "--start-method", "fork"]
    ended = train(*plain, *flags, results=tmp_path / "results")
    assert ended.code == 2, ended.stderr
    assert not [part for part in parts if part not in ended.said], ended.said
    assert "Traceback" not in ended.said
    assert ended.object is None


ODD_SAMPLES = """
import torch

from shardlab.dataset._arrays import ArrayDataset


def images():
    images, labels = torch.rand(64, 1, 8, 8), torch.arange(64) % 10
    images[40] = float("nan")
    return ArrayDataset((images, labels))
"""


@pytest.mark.slow
def test_a_loss_that_is_not_a_number_is_said_with_a_cure_and_kept(tmp_path: Path) -> None:
    """Sample 40 comes in the sixth of the eight steps, on one of the ranks."""
    (tmp_path / "odd.py").write_text(ODD_SAMPLES)
    data, results = f"{tmp_path / 'odd.py'}:images", tmp_path / "results"
    ended = train(
        "--dataset", data, "--eval-dataset", data, "--sampler", "keyed", "--no-shuffle", "--batch-size", 4,
        "--no-dropout", "--start-method", "fork", results=results,
    )  # fmt: skip
    where = "the loss in training is not a number from step 5 of epoch 0 on"
    assert ended.row["loss"] is None
    assert f"loss: {where}" in ended.row["reason"]
    assert f"T{where[1:]}. Cure: samples without NaN and infinity, or a smaller --lr" in ended.said
    assert "(loss not a number; in training not a number)" in ended.said
    losses = pd.read_csv(results / "training.csv").loss
    assert np.isfinite(losses).tolist() == [True] * 5 + [False] * 3


def learned_by(rank: int, losses: Sequence[float], eval_loss: float | None = None) -> EpochReport:
    accuracy = None if eval_loss is None else 0.5
    learned = Learned(0, 1e-3, tuple(losses), 0.99, accuracy, eval_loss, None if eval_loss is None else 43)
    return replace(report(rank, epoch=0), learned=learned)


@pytest.mark.parametrize(
    ("losses", "eval_loss", "said"),
    [
        ([2.0, 1.0], 1.5, None),
        ([2.0, math.inf, math.nan], 1.5, "in training is not a number from step 1 of epoch 0 on"),
        ([2.0, math.inf, 1.0, math.nan, 1.0], 1.5, "is not a number in 2 steps, first in step 1 of"),
        ([2.0, math.inf], None, "in training is infinite from step 1 of epoch 0 on"),
        ([2.0, 1.0], math.nan, "in evaluation is not a number"),
        ([2.0, 1.0], math.inf, "in evaluation is infinite"),
    ],
)
def test_where_the_loss_is_no_number_is_said_in_words(
    losses: list[float], eval_loss: float | None, said: str | None
) -> None:
    """One rank's loss is enough."""
    of = outcome(reports=[learned_by(0, losses, eval_loss), learned_by(1, [1.0] * len(losses), eval_loss)])
    sentences = [each for each in verdict(of) if each.startswith("The loss in")]
    if said is None:
        assert sentences == []
    else:
        (sentence,) = sentences
        assert said in sentence
        assert sentence.endswith("Cure: samples without NaN and infinity, or a smaller --lr.")


def test_before_a_weight_has_changed_a_smaller_rate_is_no_cure() -> None:
    (sentence,) = [s for s in verdict(outcome(reports=[learned_by(0, [math.nan] * 3)])) if "Cure" in s]
    assert "--lr" not in sentence


def test_json_has_no_numbers_but_finite_ones() -> None:
    of = outcome(
        reports=[learned_by(0, [2.0, math.nan])], measured={"loss": math.nan, "reason": "accuracy: none"}
    )
    found = json.loads(json.dumps(as_object(of), allow_nan=False))
    where = "the loss in training is not a number from step 1 of epoch 0 on"
    assert (found["loss"], found["reason"]) == (None, f"accuracy: none; loss: {where}")


def test_reports_keep_losses_that_are_not_finite(tmp_path: Path) -> None:
    learned_by(0, [2.0, math.inf, -math.inf, math.nan], math.nan).save(tmp_path)
    ((loaded,),) = [load_reports(tmp_path)]
    assert loaded.learned is not None
    assert loaded.learned.losses[:3] == (2.0, math.inf, -math.inf)
    assert math.isnan(loaded.learned.losses[3])
    assert loaded.learned.eval_loss is not None
    assert math.isnan(loaded.learned.eval_loss)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["keyed", "ring"])
def test_ranks_that_end_apart_are_held_together(sampler: str, tmp_path: Path) -> None:
    """43 samples in rounds of two times four: rank 0 takes a step more. A rank held alone costs a minute."""
    results = tmp_path / "results"
    began = time.monotonic()
    ended = train(
        "--dataset", named("images_43"), "--eval-dataset", "none", "--sampler", sampler, "--tail", "keep",
        "--batch-size", 4, "--start-method", "fork", results=results,
    )  # fmt: skip
    assert time.monotonic() - began < 50
    assert (ended.row["distinct"], ended.row["duplicates"], ended.row["missing"]) == (43, 0, 0)
    assert [rank["steps"] for rank in ended.row["ranks"]] == [6, 5]
    assert ended.row["reason"].startswith("copies: the dataset holds 0.0 MiB")  # read, and too small
    found: list[int] = []
    for rank in range(2):
        found += delivered(results, ended.row["run_id"], rank)
    assert sorted(found) == list(range(43))
    assert all(rank["pss_bytes"] for rank in ended.row["ranks"])


@pytest.mark.slow
def test_an_epoch_without_a_step_is_said_and_evaluated(tmp_path: Path) -> None:
    plain = ["--dataset", named("images_43"), "--eval-dataset", named("images_43"), "--start-method", "fork"]
    ended = train(*plain, "--tail", "drop", "--batch-size", 30, results=tmp_path / "results")
    assert (ended.row["steps"], ended.row["loss"]) == (0, None)
    assert "on the 43 labels of " in ended.said


@pytest.mark.slow
def test_a_slow_rank_is_named_with_what_it_costs(tmp_path: Path) -> None:
    ended = train(
        "--dataset", named("rows"), "--model", named("slow_on_rank_1"), "--batch-size", 4, "--start-method",
        "fork", results=tmp_path / "results",
    )  # fmt: skip
    assert ended.row["framework"] == "ddp"
    assert "Rank 1 computes" in ended.said
    waited = [rank["comm_s"] for rank in ended.row["ranks"]]
    assert waited[0] == pytest.approx(10 * 2 * trainees.PAUSE_S, rel=0.1)


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_can_and_is_refused_where_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the eighth step, saved after the sixth: the next run goes on with the seventh."""
    results, kept = tmp_path / "results", str(tmp_path / "kept")
    flags = [
        "--sampler", "distributed", "--dataset", named("images_480"), "--model", named("mortal"),
        "--batch-size", 4, "--start-method", "fork",
    ]  # fmt: skip
    monkeypatch.setenv(trainees.DIES_IN, "8")
    killed = train(*flags, "--checkpoint", kept, "--checkpoint-every", 3, results=results)
    assert killed.code == 1
    assert "rank 0 failed: killed by SIGKILL" in killed.said
    monkeypatch.delenv(trainees.DIES_IN)
    refused = train(*flags, "--resume", kept, "--nproc", 3, results=results)
    assert refused.code == 2
    assert "3 ranks x 4, not 2 x 4" in refused.said
    assert "Cure: the same numbers, or a checkpoint from the end of an epoch" in refused.said
    ended = train(*flags, "--resume", kept, results=results)
    assert (ended.row["steps"], ended.row["distinct"]) == (54, 480 - 6 * 8)
    assert "goes on after step 6" in ended.said
    assert [int(row["step"]) for row in rows(results, "training.csv")] == list(range(6, 60))
    found: list[int] = []
    for rank in range(2):
        found += delivered(results, rows(results, "runs.csv")[0]["run_id"], rank)[: 6 * 4]
        found += delivered(results, ended.row["run_id"], rank)
    assert sorted(found) == list(range(480))


def delivered(results: Path, run_id: str, rank: int) -> list[int]:
    """What the ledger of a rank's first epoch says."""
    found: list[int] = np.load(results / "ledger" / f"{run_id}-{rank}-0.npy").tolist()
    return found

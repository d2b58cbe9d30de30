"""``--framework trainer``: transformers.Trainer trains on our data paths as the other frameworks do."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from command import train
from shardlab.errors import UsageError

slow = pytest.mark.slow
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is an extra"
)
needs_mnist = pytest.mark.skipif("SHARDLAB_DATA" not in os.environ, reason="SHARDLAB_DATA names no folder")

USERS_FILE = """
import os
from pathlib import Path

import torch
from torch import nn


class Images:
    # 8 x 8 bytes, each class brighter elsewhere; the same every time.
    def __init__(self, length, side=8):
        self.length, self.side = length, side

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        label = index * 7 % 10
        image = torch.randint(0, 100, (1, self.side, self.side), generator=torch.Generator().manual_seed(index))
        image[0, label % self.side, : self.side // 2] += 150
        return image.to(torch.uint8), label


def training():
    return Images(240)


class Noted(Images):
    # Writes down when it came and when it went.
    def __init__(self, length):
        super().__init__(length)
        self.note("made")

    def __del__(self):
        self.note("gone")

    def note(self, word):
        with Path(__file__).with_name(f"life-{os.getpid()}").open("a") as file:
            print(word, file=file)


def testing():
    return Noted(101)


def large():
    return Images(1344, 256)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        images = Images(64)
        return (images[index] for index in range(64))


def small_model():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16, 10))
"""


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    """Datasets and a model as a user writes them."""
    file = tmp_path / "users_images.py"
    file.write_text(USERS_FILE)
    return file


def losses(results: Path) -> list[float]:
    """The loss curve of the one run in a results folder."""
    with (results / "training.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def explained(rank: dict[str, Any]) -> float:
    """How much of a rank's epoch its waiting, computing, exchanging and reading make up."""
    parts = sum(rank[name] for name in ("wait_s", "compute_s", "comm_s", "other_s"))
    return float(parts * rank["samples_per_s"] / rank["delivered"])


def test_without_transformers_the_cure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "shardlab.framework.trainer", raising=False)
    with pytest.raises(UsageError, match=r"needs transformers.*Cure: pip install 'shardlab\[trainer\]'"):
        importlib.import_module("shardlab.framework.trainer")


LOADERS = {
    "ring": "shardlab.datapath.ring.RingPath",
    "accelerate": "accelerate.data_loader.DataLoaderDispatcher",
}


@slow
@needs_transformers
@needs_mnist
@pytest.mark.parametrize("sampler", LOADERS)
def test_each_rank_gets_its_share_once_and_the_model_learns(sampler: str, tmp_path: Path) -> None:
    done = train("--framework", "trainer", "--sampler", sampler, "--max-steps", 40, "--epochs", 2, results=tmp_path)
    row = done.row
    assert (row["framework"], row["loader_class"]) == ("trainer", LOADERS[sampler])
    assert (row["delivered"], row["distinct"], row["duplicates"]) == (40 * 64 * 2, 40 * 64 * 2, 0)
    assert row["missing"] == 60_000 - 40 * 64 * 2
    assert (row["steps_min"], row["steps_max"]) == (40, 40)
    assert row["accuracy"] > 0.5  # a guess has 0.1
    assert 0 < row["loss"] < 2.3  # of a guess: log(10)
    assert row["copies"] is not None
    assert len(losses(tmp_path)) == 80
    assert len({rank["epoch"] for rank in row["ranks"]}) == 2
    assert "on the 10,000 labels of mnist:test, each counted once" in done.said
    assert "train_runtime" not in done.stderr
    assert "Warning" not in done.stderr
    for rank in row["ranks"]:
        if rank["epoch"] == 0:  # in the other the ranks were held, and their seconds made up for
            assert 0.9 < explained(rank) < 1.01, rank


@slow
@needs_transformers
@pytest.mark.parametrize(("ranks", "accumulation"), [(2, 1), (3, 4)])
def test_trainer_and_ddp_take_the_same_steps(
    ranks: int, accumulation: int, users_file: Path, tmp_path: Path
) -> None:
    flags = (
        "--dataset", f"{users_file}:training", "--eval-dataset", f"{users_file}:testing", "--nproc", ranks,
        "--batch-size", 8, "--epochs", 2, "--no-shuffle", "--tail", "drop", "--dtype", "float64",
        "--no-dropout", "--accumulation", accumulation, "--sampler", "keyed",
    )  # fmt: skip
    found, expected = (
        train(*flags, "--framework", framework, results=tmp_path / framework)
        for framework in ("trainer", "ddp")
    )
    steps = 2 * (240 // (8 * ranks))
    assert losses(tmp_path / "trainer") == pytest.approx(losses(tmp_path / "ddp"), rel=1e-6)
    assert len(losses(tmp_path / "trainer")) == steps
    assert (found.row["distinct"], found.row["duplicates"], found.row["missing"]) == (240, 0, 0)
    assert found.row["accuracy"] == expected.row["accuracy"]
    assert found.row["accuracy"] * 101 == pytest.approx(round(found.row["accuracy"] * 101), abs=1e-9)
    said = re.findall(r"Accuracy [^)]*\)", found.said)
    assert said == re.findall(r"Accuracy [^)]*\)", expected.said)
    assert "on the 101 labels" in said[0]
    lives = [file.read_text().split() for file in tmp_path.glob("life-*")]
    # None is in memory while the next epoch trains. Rank 0 also looks, before the first, whether it can be opened.
    assert sorted(map(len, lives)) == sorted([6, *[4] * (ranks - 1)] * 2)
    assert all(life == ["made", "gone"] * (len(life) // 2) for life in lives)


@slow
@needs_transformers
def test_many_batches_in_an_optimiser_step_are_no_burden_for_a_ring(users_file: Path, tmp_path: Path) -> None:
    done = train(
        "--framework", "trainer", "--sampler", "ring", "--dataset", f"{users_file}:large", "--batch-size", 32,
        "--model", f"{users_file}:small_model", "--accumulation", 12, results=tmp_path,
    )  # fmt: skip
    assert (done.row["distinct"], done.row["duplicates"], done.row["steps_max"]) == (1344, 0, 21)


@slow
@needs_transformers
@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (
            ("--checkpoint", "saved"),
            ["--framework trainer cannot have --checkpoint", "pickles", "accelerate"],
        ),
        (("--resume", "saved"), ["--framework trainer cannot have --resume", "pickle"]),
        (("--tail", "keep", "--sampler", "keyed"), ["equally many steps", "'--tail keep'", "pad, drop"]),
        (
            ("--sampler", "accelerate", "--dataset", "{file}:Stream", "--model", "{file}:small_model"),
            ["has a length", "on a stream"],
        ),
    ],
)
def test_what_trainer_cannot_do_is_refused(
    flags: tuple[str, ...], parts: list[str], users_file: Path, tmp_path: Path
) -> None:
    given = [each.format(file=users_file) for each in flags]
    if "--dataset" not in given:
        given += ["--dataset", f"{users_file}:training"]
    done = train("--framework", "trainer", "--batch-size", 8, *given, results=tmp_path / "results")
    assert done.code == 2, done.said
    assert not [part for part in parts if part not in done.said], done.said
    assert "Traceback" not in done.stderr

"""Copies are measured in training on what users have: bytes as labels, batches of their own, a rank on each host."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command import train
from faults.scene import Scene, stage
from launch.hosts import two_hosts
from shardlab import train as command
from shardlab.dataset import DatasetFacts, DatasetSpec
from shardlab.engine.job import Job
from shardlab.launch.control import flags_of
from shardlab.trainconfig import resolve_training
from shardlab.world import JOIN_VARIABLES

TORCHRUN = str(Path(sys.executable).parent / "torchrun")
SOURCES = '''
"""64 MiB of pictures with labels, and what users make of them."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

COUNT = 85_600


def pictures():
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (COUNT, 1, 28, 28), dtype=torch.uint8, generator=source)
    return images, torch.arange(COUNT) % 10


def bytes_as_labels():
    images, labels = pictures()
    return TensorDataset(images, labels.to(torch.uint8))


def pairs_of(samples):
    batch = default_collate(samples)
    return batch["image"], batch["label"]


class Named(Dataset):
    """Of three parts each, as dicts: no pair before they are collated."""

    collate_fn = staticmethod(pairs_of)

    def __init__(self):
        self.images, self.labels = pictures()

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return {"id": f"{index:06d}", "image": self.images[index], "label": np.uint8(self.labels[index])}


class Static(Named):
    @staticmethod
    def collate_fn(samples):
        return pairs_of(samples)


class Bound(Named):
    def collate_fn(self, samples):
        return pairs_of(samples)


class BoundPairs(Named):
    """What it collates, torch collates as well."""

    def __getitem__(self, index):
        return self.images[index], int(self.labels[index])

    def collate_fn(self, samples):
        return default_collate(samples)


class Particular(Named):
    @staticmethod
    def collate_fn(samples):
        if not all(sample["id"].isdigit() for sample in samples):
            raise ValueError("an id must be a number")
        return pairs_of(samples)


class Stream(IterableDataset):
    collate_fn = staticmethod(pairs_of)

    def __init__(self):
        self.rows = Named()

    def __len__(self):
        return COUNT

    def __iter__(self):
        return (self.rows[index] for index in range(COUNT))


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


class Heavy(nn.Module):
    """64 MiB of parameters, which take part: DistributedDataParallel has buffers of that size for them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(784, 10)
        self.weights = nn.Parameter(torch.zeros(1 << 24))

    def forward(self, images):
        return self.linear(images.flatten(1)) + self.weights.sum()
'''


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not a rank of anything, in a folder of its own."""
    for name in JOIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def users(tmp_path: Path) -> str:
    """The user's file."""
    path = tmp_path / "users_pictures.py"
    path.write_text(SOURCES)
    return str(path)


def trained(users: str, dataset: str, *flags: object, results: Path) -> dict[str, Any]:
    """The row of a few steps on the dataset."""
    ended = train(
        "--dataset", f"{users}:{dataset}", "--model", f"{users}:linear", "--batch-size", 256, "--max-steps", 6,
        "--eval-dataset", "none", "--start-method", "fork", *flags, results=results,
    )  # fmt: skip
    return ended.row


def assert_copies(row: dict[str, Any], truth: int) -> None:
    """The interval holds the truth, and is too narrow for any other number."""
    assert row["copies"] is not None, row["reason"]
    assert row["copies_low"] <= truth <= row["copies_high"], row["copies"]
    assert row["copies"] == pytest.approx(truth, abs=0.45)


@pytest.mark.parametrize("given", [[], ["--framework", "auto"], ["--framework=auto", "--lr", "0.1"]])
def test_the_control_is_told_the_framework_that_the_run_came_to(given: list[str]) -> None:
    config, asked, _ = command.parse(given)
    spec, facts = DatasetSpec(config.dataset), DatasetFacts(1, None, {"kind": "none"})
    job = Job("id", "folder", config, spec, facts, train=resolve_training(asked, config, 2))
    _, told, _ = command.parse(flags_of(job, given))
    assert told == replace(asked, framework="ddp")
    assert flags_of(replace(job, train=None), ["--nproc", "2"]) == ["--nproc", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "flags", "copies"),
    [
        ("bytes_as_labels", ["--sampler", "distributed", "--nproc", 2], 2),
        ("Named", ["--sampler", "keyed", "--store", "shared", "--nproc", 2], 1),
        ("Static", ["--sampler", "distributed", "--nproc", 2, "--workers", 1], 2),
        ("Named", ["--sampler", "ring", "--nproc", 2], 1),
        ("Stream", ["--sampler", "accelerate-shard", "--nproc", 1], 1),
        ("BoundPairs", ["--sampler", "distributed", "--nproc", 1], 1),
    ],
    ids=["bytes as labels", "a function", "a static method", "ring", "a stream", "a bound method"],
)
def test_copies_are_a_number(
    dataset: str, flags: list[object], copies: int, users: str, tmp_path: Path
) -> None:
    assert_copies(trained(users, dataset, *flags, results=tmp_path / "results"), copies)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "parts"),
    [
        ("Bound", ["own collate_fn cannot be had without the dataset", "Cure: make it a static method"]),
        ("Particular", ["an id must be a number", "the dataset's own users_pictures:Particular.collate_fn"]),
    ],
)
def test_where_batches_cannot_be_made_without_the_dataset_it_is_said_why(
    dataset: str, parts: list[str], users: str, tmp_path: Path
) -> None:
    row = trained(users, dataset, "--sampler", "distributed", "--nproc", 1, results=tmp_path / "results")
    assert (row["copies"], row["status"]) == (None, "ok")
    assert not [part for part in ("copies: the control run failed", *parts) if part not in row["reason"]], row


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with stage(tmp_path) as scene:
        yield scene


@pytest.mark.slow
def test_below_torchrun_it_is_the_rank_that_says_why(scene: Scene, users: str) -> None:
    flags = (
        "--dataset", f"{users}:Particular", "--model", f"{users}:linear", "--sampler", "distributed",
        "--max-steps", "6", "--eval-dataset", "none", "--json", "--quiet",
    )  # fmt: skip
    launcher = (
        TORCHRUN, "--standalone", "--nproc-per-node", "2", "--log-dir", str(scene.folder / "launcher"),
    )  # fmt: skip
    ended = scene.run(*flags, command=(*launcher, "-m", "shardlab.train"))
    assert ended.code == 0, ended.err
    assert "an id must be a number" in json.loads(ended.out)["reason"]


@pytest.mark.slow
def test_the_control_of_a_rank_alone_on_its_host_trains_as_the_run_does(
    scene: Scene, users: str, tmp_path: Path
) -> None:
    """Trained by itself it would lack the buffers of gradients, and they would pass for a second copy."""
    flags = (
        "--dataset", f"{users}:bytes_as_labels", "--model", f"{users}:Heavy", "--sampler", "distributed",
        "--batch-size", "64", "--max-steps", "6", "--eval-dataset", "none", "--json", "--quiet",
    )  # fmt: skip
    torchrun = (
        TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "host-0:29500", "--log-dir", str(scene.folder / "launcher"),
    )  # fmt: skip
    with two_hosts(tmp_path) as hosts:
        runs = [
            scene.start(*flags, command=(
                *host.prefix, "env", "-C", str(scene.folder), f"TMPDIR={host.tmp}", *torchrun, "-m", "shardlab.train"
            ))
            for host in hosts
        ]  # fmt: skip
        ended = [run.wait() for run in runs]
    assert [each.code for each in ended] == [0, 0], "\n".join(each.err for each in ended)
    (printed,) = [each.out for each in ended if each.out.strip()]
    row = json.loads(printed)
    assert (row["framework"], row["nnodes"], row["world_size"]) == ("ddp", 2, 2)
    for node in scene.rows("nodes.csv"):
        assert node["copies"], row["reason"]
        assert float(node["copies"]) == pytest.approx(1, abs=0.45)

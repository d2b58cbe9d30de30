"""Datasets and models that tests of training name by file: small, and made from arithmetic."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

from shardlab.dataset._arrays import ArrayDataset
from shardlab.engine.model import Cnn

HERE = str(Path(__file__))
PAUSE_S = 0.05
TOLD = "SHARDLAB_TEST_TOLD"
"""Variable: where ``sleepers`` and ``sleeper`` add up the seconds that they slept."""
DIES_IN = "SHARDLAB_TEST_DIES_IN"
"""Variable: the forward pass, counted from 1, in which rank 0 kills itself with ``mortal``."""

made: list[nn.Module] = []
"""The models that were made in this process."""


def named(name: str) -> str:
    """A factory of this file as a flag has it."""
    return f"{HERE}:{name}"


def arrays(samples: int, dtype: torch.dtype = torch.uint8) -> ArrayDataset:
    """Images of shape (1, 8, 8) that tell their class, hidden in the noise of their own number."""
    index = torch.arange(samples)
    labels = (index * 7) % 10
    pixels = (index[:, None] * 31 + torch.arange(64) * 17) % 64
    pixels[index, labels * 6] += 128
    images = pixels.reshape(-1, 1, 8, 8)
    return ArrayDataset((images.to(torch.uint8) if dtype == torch.uint8 else images.to(dtype) / 255, labels))


def images_400() -> ArrayDataset:
    """Enough for fifty steps of eight."""
    return arrays(400)


def images_480() -> ArrayDataset:
    """Sixty steps of eight; what is left after any three of them are full rounds of twelve."""
    return arrays(480)


def images_101() -> ArrayDataset:
    """A number that no number of ranks divides."""
    return arrays(101)


def images_43() -> ArrayDataset:
    """On four ranks with batches of four: the last round has eleven."""
    return arrays(43)


def images_2() -> ArrayDataset:
    """Fewer than ranks."""
    return arrays(2)


def images_0() -> ArrayDataset:
    """None."""
    return arrays(0)


def triples() -> ArrayDataset:
    """Samples of three parts."""
    images, labels = arrays(40).leaves
    return ArrayDataset((images, labels, labels))


def plain_images() -> ArrayDataset:
    """Numbers of shape (8, 8), without an axis of channels, and labels of 32 bits."""
    images, labels = arrays(40, torch.float32).leaves
    return ArrayDataset((images[:, 0], labels.int()))


class Sleepy(Dataset[Any]):
    """Samples that take their time."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> Any:
        tell("dataset", slept(PAUSE_S / 4))
        return torch.full((4,), index / 160), index % 10


def sleepers() -> Sleepy:
    """A dataset that sleeps for each sample."""
    return Sleepy()


def rows() -> ArrayDataset:
    """Samples as theirs, at once."""
    return ArrayDataset((torch.rand(80, 4), torch.arange(80) % 10))


class Apart:
    """A data path of one's own that gives rank 0 two batches of three and each other rank three of them."""

    def __init__(self, store: Any, plan: Any, world: Any) -> None:
        self.dataset, self.world = store.dataset, world

    def __len__(self) -> int:
        return 2 + (self.world.rank > 0)

    def __iter__(self) -> Iterator[Any]:
        for step in range(len(self)):
            first = 3 * (step * self.world.world_size + self.world.rank)
            indices = [first, first + 1, first + 2]
            yield default_collate([self.dataset[index] for index in indices]), indices

    def set_epoch(self, epoch: int) -> None:
        """All are alike."""


def keep(model: nn.Module) -> nn.Module:
    """Remember a model, so that who runs in its process can look at it."""
    made.append(model)
    return model


def small() -> nn.Module:
    """The cnn for these images, without dropout."""
    return keep(Cnn(1, 8, 8, dropout=False))


def normed() -> nn.Module:
    """A model with a batch norm, whose statistics each rank has of its own."""
    return keep(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)))


class Sleeper(nn.Module):
    """A linear model whose forward pass sleeps ``pause_s``, or ``others_s`` on all ranks but 1."""

    def __init__(self, pause_s: float, others_s: float | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 10)
        self.pause_s = pause_s if others_s is None or os.environ.get("RANK") == "1" else others_s

    def forward(self, x: torch.Tensor) -> Any:
        seconds = slept(self.pause_s)
        if self.training:
            tell("model", seconds)
        return self.linear(x)


def sleeper() -> Sleeper:
    """Sleeps in each forward pass."""
    return Sleeper(PAUSE_S)


def slow_on_rank_1() -> Sleeper:
    """Three times as slow there."""
    return Sleeper(3 * PAUSE_S, PAUSE_S)


class Mortal(Cnn):
    """Kills its own process in a forward pass of rank 0, see DIES_IN."""

    def __init__(self) -> None:
        super().__init__(1, 8, 8, dropout=False)
        self.left = int(os.environ.get(DIES_IN, "0"))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0 and os.environ.get("RANK") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


def mortal() -> Mortal:
    """See the class."""
    return Mortal()


def no_module() -> int:
    """What is no model."""
    return 5


def slept(seconds: float) -> float:
    """Sleep, and say how long it really was."""
    started = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - started


def tell(who: str, seconds: float) -> None:
    """Add to the sum in the file of this rank, where somebody listens; costs next to nothing."""
    if TOLD in os.environ:
        _sum_of(who)[0] += seconds


@cache
def _sum_of(who: str) -> Any:
    path = f"{os.environ[TOLD]}-{who}-{os.environ.get('RANK')}"
    return np.memmap(path, np.float64, "w+", shape=1)


def told(path: Path, who: str, rank: int) -> float:
    """The sum of what was told there, in seconds."""
    return float(np.fromfile(f"{path}-{who}-{rank}", np.float64)[0])

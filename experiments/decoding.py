"""Datasets whose samples cost processor time to read, as decoding an image does, or time asleep, as a slow disk.

For ``shardlab.profile --dataset experiments/decoding.py:spin_200us`` and the like.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.utils.data import Dataset

SAMPLES = 20_000
SHAPE = (3, 32, 32)


class Costly(Dataset[torch.Tensor]):
    """Sample ``i`` is filled with ``i % 251``, after ``seconds`` of what ``cost`` does."""

    def __init__(self, seconds: float, cost: Callable[[float], None]) -> None:
        self.seconds, self.cost = seconds, cost

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        self.cost(self.seconds)
        return torch.full(SHAPE, index % 251, dtype=torch.uint8)


def spin(seconds: float) -> None:
    """Use the processor for so long; time in which another process had it does not count."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def spin_0us() -> Dataset[torch.Tensor]:
    """No cost but that of making the sample."""
    return Costly(0.0, spin)


def spin_200us() -> Dataset[torch.Tensor]:
    """0.2 ms of processor time each."""
    return Costly(2e-4, spin)


def spin_2ms() -> Dataset[torch.Tensor]:
    """2 ms of processor time each."""
    return Costly(2e-3, spin)


def asleep_100ms() -> Dataset[torch.Tensor]:
    """0.1 s asleep each."""
    return Costly(0.1, time.sleep)

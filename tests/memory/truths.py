"""Datasets as users write them, each with a number of copies that is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

MIB = 1 << 20
ROW = 784


def array() -> NDArray[np.float32]:
    """128 MiB in one array of NumPy's."""
    rows = 128 * MIB // (4 * ROW)
    return np.random.default_rng(0).random((rows, ROW), np.float32)


def stacked() -> torch.Tensor:
    """128 MiB of float32, from a list of as many bytes that is garbage afterwards."""
    rows = 128 * MIB // (4 * ROW)
    return torch.stack([torch.full((ROW,), float(row)) for row in range(rows)])


def strings() -> list[str]:
    """600 000 texts of 100 characters each."""
    return [f"{number:0100d}" for number in range(600_000)]


def images() -> list[NDArray[np.uint8]]:
    """2000 decoded images of 59 643 bytes, as a cache of images holds them."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (141, 141, 3), np.uint8) for _ in range(2000)]


def small_lists() -> list[list[int]]:
    """A million lists of two numbers, which are the same two objects in all: the lists alone weigh."""
    return [[0, 1] for _ in range(1_000_000)]


class Pixels:
    """256 MiB of pixels in one tensor, a sample being one row of 784 bytes."""

    def __init__(self) -> None:
        self.rows = torch.randint(0, 256, (256 * MIB // ROW, ROW), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]

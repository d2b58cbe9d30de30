"""Rows of bytes that cost processor time to read; how many bytes and how much time is in the factory's name.

    python -m shardlab.profile --dataset experiments/costly_rows.py:rows_16384_200us
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch.utils.data import Dataset

from decoding import spin

SAMPLES = 100_000  # for epochs of any length
KEPT_BYTES = 64 << 20


def __getattr__(name: str) -> Callable[[], Rows]:
    """``rows_BYTES_MICROSECONDSus`` is a factory."""
    match = re.fullmatch(r"rows_(\d+)_(\d+)us", name)
    if match is None:
        raise AttributeError(name)
    return partial(Rows, int(match[1]), int(match[2]) / 1e6)


class Rows(Dataset[torch.Tensor]):
    """Random rows of ``sample_bytes``, each read after ``seconds`` of processor time; after 64 MiB they repeat."""

    def __init__(self, sample_bytes: int, seconds: float) -> None:
        shape = (min(SAMPLES, KEPT_BYTES // sample_bytes), sample_bytes)
        self.rows = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
        self.seconds = seconds

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        spin(self.seconds)
        return self.rows[index % len(self.rows)]

"""One rank that reads a file, prepares its samples and computes on them, and how long it waits.

    python experiments/stalled.py FILE WORKERS PREPARE_US COMPUTE_MS
    python experiments/stalled.py - 0 0 COMPUTE_MS                          the same batch again and again

Prints {"samples_per_s": ..., "stall_ratio": ..., "wait_p50_s": ..., "read_bytes": ...}, start-up apart. Preparing and
computing use the processor: preparing PREPARE_US for a sample, computing COMPUTE_MS for a batch. ``read_bytes`` are
those that this process and its workers had fetched from the disk.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

from decoding import spin

BATCH, STEPS = 32, 96
SAMPLE_BYTES = 32 << 10
SAMPLES = BATCH * STEPS


class FileRows(Dataset[torch.Tensor]):
    """Rows of a ``.npy`` file, mapped where they are read, each prepared for ``seconds``."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path, self.seconds = path, seconds
        self.rows: Any = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.rows is None:
            self.rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
        row = torch.from_numpy(np.array(self.rows[index]))
        spin(self.seconds)
        return row


def main() -> None:
    """One epoch of the command line."""
    path, workers, prepare_us, compute_ms = sys.argv[1], *map(float, sys.argv[2:])
    seen = run(batches_of(path, int(workers), prepare_us / 1e6), compute_ms / 1e3)
    waited = sum(seen.waits_s)
    whole = waited + seen.computed_s
    print(json.dumps({
        "samples_per_s": BATCH * len(seen.waits_s) / whole, "wait_p50_s": statistics.median(seen.waits_s),
        "stall_ratio": waited / whole if compute_ms else None, "read_bytes": seen.read_bytes,
    }))  # fmt: skip


def batches_of(path: str, workers: int, prepare_s: float) -> Iterable[Any]:
    """All batches of the file, shuffled; of no file, one that is there already."""
    if path == "-":
        return [torch.zeros(BATCH, SAMPLE_BYTES, dtype=torch.uint8)] * STEPS
    torch.manual_seed(0)
    return DataLoader(FileRows(path, prepare_s), BATCH, shuffle=True, num_workers=workers)


@dataclass(frozen=True)
class Seen:
    """The wait for each batch but the first, the seconds between those waits, and what was fetched from the disk."""

    waits_s: list[float]
    computed_s: float
    read_bytes: int


def run(batches: Iterable[Any], compute_s: float) -> Seen:
    """One epoch. The first batch is left out, and with it the time in which workers start."""
    stream = iter(batches)
    next(stream)
    waits, computed = [], 0.0
    for _ in range(1, STEPS):
        asked = time.perf_counter()
        batch = next(stream)
        came = time.perf_counter()
        batch.view(torch.int64).sum()  # every byte is read, by eight
        spin(compute_s)
        waits.append(came - asked)
        computed += time.perf_counter() - came
    return Seen(waits, computed, read_bytes())  # before the workers end, with whom their counts go


def read_bytes() -> int:
    """Of this process and its children."""
    me = psutil.Process()
    return sum(process.io_counters().read_bytes for process in [me, *me.children(recursive=True)])


if __name__ == "__main__":
    main()

"""How far each rank is, in a small file that the launcher reads whenever it likes."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FILE = "progress"
FIELDS = 6
"""Epochs begun, steps done in this one, steps expected in it (0: not known); of training, the loss and seconds
waited, as the bits of a float64, and samples trained on."""


@dataclass(frozen=True)
class Reached:
    """How far a rank is. ``samples`` of this epoch were trained on, ``wait_s`` was spent waiting for them."""

    epoch: int
    steps: int
    expected: int
    loss: float
    wait_s: float
    samples: int


class ProgressFile:
    """A few numbers for each local rank; writing a step is two stores to memory."""

    def __init__(self, run_dir: Path, local_world_size: int) -> None:
        nbytes = 8 * FIELDS * local_world_size
        fd = os.open(run_dir / FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, nbytes)
            self._cells = memoryview(mmap.mmap(fd, nbytes)).cast("q")
        finally:
            os.close(fd)

    @classmethod
    def of(cls, run_dir: Path) -> ProgressFile | None:
        """That of a run that goes on, None where its ranks have not begun."""
        path = run_dir / FILE
        size = path.stat().st_size if path.exists() else 0
        return cls(run_dir, size // (8 * FIELDS)) if size else None

    def writer(self, local_rank: int, epoch: int) -> Callable[[int, int | None], None]:
        """A function to call with (steps done, steps expected) after each step of ``epoch``."""
        cells, base = self._cells, local_rank * FIELDS
        cells[base : base + FIELDS] = memoryview(bytearray(8 * FIELDS)).cast("q")
        cells[base] = epoch + 1

        def write(steps: int, expected: int | None) -> None:
            cells[base + 1] = steps
            cells[base + 2] = expected or 0

        return write

    def tell(self, local_rank: int, loss: float, wait_s: float, samples: int) -> None:
        """What training has come to in this epoch."""
        base = local_rank * FIELDS
        self._cells[base + 3], self._cells[base + 4] = struct.unpack("qq", struct.pack("dd", loss, wait_s))
        self._cells[base + 5] = samples

    def read(self) -> list[Reached]:
        """Of each local rank."""
        values = self._cells.tolist()
        return [_reached(values[at : at + FIELDS]) for at in range(0, len(values), FIELDS)]


def _reached(cells: list[int]) -> Reached:
    loss, wait_s = struct.unpack("dd", struct.pack("qq", *cells[3:5]))
    return Reached(cells[0], cells[1], cells[2], loss, wait_s, cells[5])

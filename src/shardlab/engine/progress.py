"""How far each rank is, in a small file that the launcher reads whenever it likes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

FIELDS = 3  # epochs begun, steps done in this one, steps expected in it (0: not known)


class ProgressFile:
    """Three numbers for each local rank; writing a step is two stores to memory."""

    def __init__(self, run_dir: Path, local_world_size: int) -> None:
        nbytes = 8 * FIELDS * local_world_size
        fd = os.open(run_dir / "progress", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, nbytes)
            self._cells = memoryview(mmap.mmap(fd, nbytes)).cast("q")
        finally:
            os.close(fd)

    def writer(self, local_rank: int, epoch: int) -> Callable[[int, int | None], None]:
        """A function to call with (steps done, steps expected) after each step of ``epoch``."""
        cells, base = self._cells, local_rank * FIELDS
        cells[base : base + FIELDS] = memoryview(bytearray(8 * FIELDS)).cast("q")
        cells[base] = epoch + 1

        def write(steps: int, expected: int | None) -> None:
            cells[base + 1] = steps
            cells[base + 2] = expected or 0

        return write

    def read(self) -> list[tuple[int, int, int]]:
        """(epochs begun, steps done, steps expected) of each local rank."""
        values = self._cells.tolist()
        return [tuple(values[i : i + FIELDS]) for i in range(0, len(values), FIELDS)]  # type: ignore[misc]

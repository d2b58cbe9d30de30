"""Who gets which global position of an epoch: a rank's contiguous part of each global batch, and the tail.

Place j of a rank's batch in step s stands at ``start + s * W * batch_size + rank * batch_size + j``. With 11
samples, two ranks and batches of two; the number is the position in the epoch's order::

    step        0       1       2
    rank 0    0  1    4  5    8  9       drop ends here after step 1
    rank 1    2  3    6  7   10  0       pad; keep delivers 10 alone

``pad`` starts again from the front of the epoch's order (position mod n) until every rank has full batches, as
Accelerate does by default (``even_batches=True``), on few samples too. torch's ``DistributedSampler`` pads up
to a multiple of W samples only, so that last batches are short. ``drop`` leaves the incomplete round out, as
Accelerate does with ``drop_last=True``. ``keep`` is Accelerate's ``even_batches=False``: later ranks get a
shorter last batch, or none.

An epoch can go on at ``start`` positions consumed, on any number of ranks and with any batch size: what was
delivered is a prefix of the global order, and what remains is divided anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from shardlab.config import Tail
from shardlab.errors import UsageError


@dataclass(frozen=True)
class Partition:
    """How the positions ``start`` to ``samples - 1`` are divided. ``batch_size`` is per rank and step.

    >>> rest = Partition(samples=11, world_size=2, batch_size=2, start=4)
    >>> [rest.positions(rank, 0, rest.steps(rank)).tolist() for rank in range(2)]
    [[4, 5, 8, 9], [6, 7, 10, 0]]
    """

    samples: int
    world_size: int
    batch_size: int
    tail: Tail = "pad"
    start: int = 0

    def __post_init__(self) -> None:
        for name, least in (("samples", 0), ("world_size", 1), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}", getattr(self, name))
        if self.tail not in get_args(Tail):
            raise UsageError("tail must be a known one", self.tail, get_args(Tail))
        if not 0 <= self.start <= self.samples:
            raise UsageError(f"positions consumed must lie in [0, {self.samples}]", self.start)

    @property
    def round_size(self) -> int:
        """Samples of a global batch."""
        return self.world_size * self.batch_size

    @property
    def is_even(self) -> bool:
        """True where all ranks get equally many samples, so none waits for one that has ended."""
        return self.tail != "keep" or self.world_size == 1 or self.rest == 0

    @property
    def rest(self) -> int:
        """Samples of the last, incomplete round; 0 where all are full."""
        return (self.samples - self.start) % self.round_size

    def steps(self, rank: int) -> int:
        """Number of batches that ``rank`` gets."""
        rounds = (self.samples - self.start) // self.round_size
        if self.tail == "drop":
            return rounds
        first = rank * self.batch_size if self.tail == "keep" else 0  # of the last round, for this rank
        return rounds + (self.rest > first)

    def size(self, rank: int) -> int:
        """Number of samples that ``rank`` gets, repeats included."""
        full = self.steps(rank) * self.batch_size
        if self.tail != "keep":
            return full
        end = self.start + (self.steps(rank) - 1) * self.round_size + (rank + 1) * self.batch_size
        return full - max(0, end - self.samples)

    def positions(self, rank: int, first_step: int, last_step: int) -> NDArray[np.int64]:
        """Positions of a rank's batches ``first_step`` to ``last_step - 1``, one after the other: int64[k].

        All batches are full but the last one of the epoch under ``keep``. Positions lie in range(samples).
        """
        steps = np.arange(first_step, min(last_step, self.steps(rank)), dtype=np.int64)
        places = np.arange(self.batch_size, dtype=np.int64)
        beginnings = self.start + steps * self.round_size + rank * self.batch_size
        grid = beginnings[:, None] + places  # (step, place)
        positions: NDArray[np.int64] = grid.ravel()
        if not positions.size or positions[-1] < self.samples:
            return positions
        inside = int(np.searchsorted(positions, self.samples))
        if self.tail == "keep":
            return positions[:inside]
        positions[inside:] %= self.samples
        return positions

    def consumed(self, steps: int) -> int:
        """Positions of the epoch that are dealt with after ``steps`` steps: all, once no rank has another."""
        if steps >= self.steps(0):
            return self.samples
        return self.start + steps * self.round_size

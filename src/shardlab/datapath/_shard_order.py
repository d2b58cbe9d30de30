"""The order in which `sharded` reads an epoch: parts, shards in them, windows; and how ranks deal it out.

A part is a contiguous range of samples; an epoch that begins on W ranks has W of them. The global order takes
a batch of each part in turn. Ten samples, two parts, batches of two, unshuffled::

    step        0      1      2
    part 0     0 1    2 3     4        global order   0 1 5 6 2 3 7 8 4 9
    part 1     5 6    7 8     9

On as many ranks and with the batch that the epoch began with, each rank reads its own part. What was delivered
after some steps is a prefix of the global order, so one number says what remains, on any number of ranks.
Ranks of another number deal out the rest of that epoch batch by batch, which opens more shards on each; the
next epoch has parts of their own.

Shuffled, the shards of a part come in random order, and within each window of that sequence the samples do.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardlab.index.permutation import BLOCK, Permutation, key_of

WINDOW_SAMPLES = 1 << 14
WINDOW_SHARDS = 4
"""A window is so many samples or so many shards, whichever is more."""

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Rounds:
    """Positions ``start`` to ``samples - 1`` dealt to ranks: full batches in turn, then even pieces of the rest.

    >>> Rounds(10, ranks=2, batch_size=2).piece(1)
    (9, 10)
    """

    samples: int
    ranks: int
    batch_size: int
    start: int = 0

    @property
    def round_size(self) -> int:
        """Samples of a full round."""
        return self.ranks * self.batch_size

    @property
    def full(self) -> int:
        """Number of full rounds."""
        return (self.samples - self.start) // self.round_size

    @property
    def rest(self) -> int:
        """Samples of the last, incomplete round."""
        return (self.samples - self.start) % self.round_size

    def piece(self, rank: int) -> tuple[int, int]:
        """First position of a rank's piece of the rest, and the one after its last."""
        base = self.start + self.full * self.round_size
        return base + self.rest * rank // self.ranks, base + self.rest * (rank + 1) // self.ranks

    def last_batch(self, rank: int, tail: str) -> int:
        """Samples of a rank's batch after the full ones, its repeats included."""
        if tail == "pad":
            return -(-self.rest // self.ranks)
        if tail == "drop":
            return self.rest // self.ranks
        first, last = self.piece(rank)
        return last - first

    def steps(self, rank: int, tail: str) -> int:
        """Number of batches of a rank."""
        return self.full + (self.last_batch(rank, tail) > 0)

    def consumed(self, steps: int, tail: str) -> int:
        """Positions of the epoch that are dealt with after ``steps``: all, once no rank has another step."""
        if steps and steps >= max(self.steps(rank, tail) for rank in range(self.ranks)):
            return self.samples
        return self.start + min(steps, self.full) * self.round_size

    def locate(self, positions: Indices) -> tuple[Indices, Indices]:
        """Rank that each position is dealt to, and its number among the rank's own; for ``start`` = 0."""
        step, offset = np.divmod(positions, self.round_size)
        rank, place = np.divmod(offset, self.batch_size)
        number = step * self.batch_size + place
        late = positions >= self.full * self.round_size
        if late.any():
            place = offset[late]
            rank[late] = owner = ((place + 1) * self.ranks - 1) // self.rest
            number[late] = self.full * self.batch_size + place - self.rest * owner // self.ranks
        return rank, number


class Part:
    """The order of one part's samples, computed where it is asked for.

    ``ends``: of the shards of the whole folder, int64[shards].
    """

    def __init__(self, first: int, last: int, ends: Indices, key: int | None) -> None:
        self.first, self.key = first, key
        if key is None:
            return
        borders = np.unique(np.clip(np.concatenate([[first], ends, [last]]), first, last))
        sizes = np.diff(borders)
        order = Permutation(len(sizes), key_of(key, 0)).chunk(0, len(sizes))
        self.starts = borders[:-1][order]
        self.ends = np.cumsum(sizes[order])
        self.window = window_of(ends)
        self._at = -1, Permutation(0, 0)

    def take(self, numbers: Indices) -> Indices:
        """The sample at each number in the part's order."""
        if self.key is None:
            return self.first + numbers
        places = np.empty_like(numbers)
        windows, within = np.divmod(numbers, self.window)
        for window in np.unique(windows).tolist():
            chosen = windows == window
            places[chosen] = window * self.window + self._permutation(window).permute(within[chosen])
        span = np.searchsorted(self.ends, places, side="right")
        before = np.where(span > 0, self.ends[span - 1], 0)
        taken: Indices = self.starts[span] + places - before
        return taken

    def _permutation(self, window: int) -> Permutation:
        if self._at[0] != window:
            assert self.key is not None
            size = min(self.window, int(self.ends[-1]) - window * self.window)
            self._at = window, Permutation(size, key_of(self.key, window + 1))
        return self._at[1]


@dataclass(frozen=True)
class EpochOrder:
    """The global order of an epoch that began on ``parts.ranks`` ranks; ``key`` is None where unshuffled."""

    parts: Rounds
    ends: Indices
    key: int | None
    _made: dict[int, Part] = field(default_factory=dict, compare=False)

    def take(self, positions: Indices) -> Indices:
        """The sample at each global position."""
        part, number = self.parts.locate(positions)
        indices = np.empty_like(number)
        for which in np.unique(part).tolist():
            chosen = part == which
            indices[chosen] = self._part(which).take(number[chosen])
        return indices

    def _part(self, part: int) -> Part:
        if part not in self._made:
            first, last = (self.parts.samples * number // self.parts.ranks for number in (part, part + 1))
            key = None if self.key is None else key_of(key_of(self.key, self.parts.ranks), part)
            self._made[part] = Part(first, last, self.ends, key)
        return self._made[part]

    def batches(self, deal: Rounds, rank: int, tail: str, steps: int | None = None) -> Iterator[Indices]:
        """What a rank reads, batch by batch, its first ``steps`` or all. Repeats come at its very end."""
        full = deal.full if steps is None else min(steps, deal.full)
        at_once = max(1, BLOCK // deal.batch_size)
        places = deal.start + rank * deal.batch_size + np.arange(deal.batch_size, dtype=np.int64)
        for first in range(0, full, at_once):
            numbers = np.arange(first, min(first + at_once, full), dtype=np.int64)
            grid = numbers[:, None] * deal.round_size + places  # (step, place)
            yield from self.take(grid.ravel()).reshape(grid.shape)
        size = deal.last_batch(rank, tail)
        if size and (steps is None or steps > deal.full):
            first, last = deal.piece(rank)
            positions = np.arange(first, min(last, first + size), dtype=np.int64)
            repeats = np.full(size - len(positions), self._repeated(rank), np.int64)
            yield self.take(np.concatenate([positions, repeats]))

    def _repeated(self, rank: int) -> int:
        """Position of the sample that fills a rank's last batch: the first of its part, or of the epoch."""
        part = rank % self.parts.ranks
        if self.parts.full:
            return part * self.parts.batch_size
        first, last = self.parts.piece(part)
        return first if first < last else 0


def window_of(ends: Indices) -> int:
    """Samples of a shuffling window."""
    largest = int(np.diff(ends, prepend=0).max(initial=1))
    return max(WINDOW_SAMPLES, WINDOW_SHARDS * largest)


def fingerprint(ends: Indices) -> int:
    """A number that tells folders with other shards apart: their order differs."""
    return zlib.crc32(np.ascontiguousarray(ends, "<i8").tobytes())


@dataclass(frozen=True)
class Mixing:
    """How well a rank's order mixes the shards it reads, and what a perfect shuffle of them would give.

    ``distinct``: different shards in a batch, on average. ``same``: how often the next sample comes from the
    same shard; None where there is no next one.
    """

    shards: int
    distinct: float
    ideal_distinct: float
    same: float | None
    ideal_same: float | None


def mixing(batches: list[Indices], ends: Indices) -> Mixing | None:
    """Measured on a rank's full batches, one after another; None where there are none.

    For ``ns`` shards that share evenly the ideal number in a batch of b is ``ns (1 - (1 - 1/ns)^b)``.
    """
    if not batches:
        return None
    size = len(batches[0])
    shards = np.searchsorted(ends, np.stack([batch for batch in batches if len(batch) == size]), side="right")
    ordered = np.sort(shards, axis=1)
    distinct = 1 + (np.diff(ordered, axis=1) != 0).sum(axis=1)
    counts = np.unique(shards, return_counts=True)[1]
    total = shards.size
    stream = shards.ravel()
    return Mixing(
        len(counts), float(distinct.mean()), float((1 - (1 - counts / total) ** size).sum()),
        float((stream[1:] == stream[:-1]).mean()) if total > 1 else None,
        float((counts / total * (counts - 1) / (total - 1)).sum()) if total > 1 else None,
    )  # fmt: skip

"""What an epoch has to keep to, and what is said when it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardlab.config import Tail
from shardlab.index.deliveries import Deliveries
from shardlab.index.order import Layout

Words = Callable[[NDArray[np.int64]], NDArray[np.uint64]]

CURES = {
    "foreign": "keep the sampler within range(len(dataset))",
    "missing": "shard once (not a DistributedSampler and prepare), and shuffle with one seed on all ranks",
    "duplicated": "split the samples by rank and by worker; if padding is not wanted, --tail drop or keep",
    "order": "without shuffling, deal out range(n) in the layout of the data path",
    "content": "return for index i the sample i; look for a buffer that is reused too early",
    "length": "let len(loader) be the number of batches that this rank gets",
    "unequal-steps": "give all ranks the same steps by --tail pad or --tail drop",
}


@dataclass(frozen=True)
class Finding:
    """One thing wrong. ``sentence`` says what came first and where, ``cure`` what to do.

    ``name`` is a key of ``CURES``. ``step`` counts from 0 in the epoch, ``position`` is the place in the
    rank's batch; ``None`` where the finding has no such place.
    """

    name: str
    rank: int | None
    epoch: int
    step: int | None
    position: int | None
    sentence: str
    cure: str


@dataclass(frozen=True)
class Rules:
    """The fields are the arguments of :func:`shardlab.index.audit.audit`, which explains them."""

    epoch: int
    samples: int | None
    world_size: int
    batch_size: int
    tail: Tail
    truncated: bool
    shuffle: bool
    layout: Layout | None
    pad_allowed: int | None
    len_reported: tuple[int | None, ...]
    expected_words: Words | None

    @property
    def round_size(self) -> int:
        """Samples in one step of all ranks."""
        return self.world_size * self.batch_size

    def missing_allowed(self, samples: int) -> int:
        """How many samples the tail explains: under ``drop``, those of the last round if it is incomplete."""
        return samples % self.round_size if self.tail == "drop" else 0

    def repeats_allowed(self, steps: int) -> int:
        """How many repeats padding explains in an epoch of ``steps``."""
        if self.tail != "pad":
            return 0
        if self.truncated and self.samples is not None and steps * self.round_size <= self.samples:
            return 0  # ended before any padding was due
        if self.pad_allowed is not None:
            return self.pad_allowed
        return self.round_size - 1 if self.samples is None else -self.samples % self.round_size

    def finding(
        self,
        name: str,
        sentence: str,
        rank: int | None = None,
        step: int | None = None,
        place: int | None = None,
    ) -> Finding:
        """A finding of this epoch."""
        return Finding(name, rank, self.epoch, step, place, sentence, CURES[name])

    def finding_at(self, name: str, got: Deliveries, row: int, sentence: str) -> Finding:
        """A finding that is first seen at a delivery."""
        rank, step, place = int(got.rank[row]), int(got.step[row]), int(got.place[row])
        return self.finding(name, f"{got.where(row)}: {sentence}", rank, step, place)

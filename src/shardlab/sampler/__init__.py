"""Samplers that need no index list: an epoch's order is computed where it is needed, in O(1) memory.

``KeyedSampler`` takes the place of torch's ``DistributedSampler`` in a plain ``DataLoader``::

    sampler = KeyedSampler(dataset, batch_size=64)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader: ...

``KeyedBatchSampler`` gives an int64 array for each step: to ``DataLoader(batch_sampler=...)``, whose dataset gets
it whole where it has ``__getitems__``, or to ``DataLoader(sampler=..., batch_size=None)``, whose dataset gets it
as its index. ``prepare`` takes a loader with ``sampler=KeyedSampler`` or ``batch_sampler=KeyedBatchSampler``
through ``Accelerator.prepare``.

The order follows from (seed, epoch, number of samples) alone, a rank's part of it is said in
``shardlab.index.partition``. ``state_dict`` is a few integers, equal on all ranks after the same step;
``load_state_dict`` goes on there on any number of ranks, at once: nothing is drawn and thrown away. Both are what
torchdata's ``StatefulDataLoader`` asks for. What ``set_epoch`` does after it is said in ``shardlab.index.place``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from shardlab.sampler._keyed import Keyed
from shardlab.sampler._prepare import prepare
from shardlab.sampler._walk import Walk

__all__ = ["KeyedBatchSampler", "KeyedSampler", "prepare"]


class KeyedSampler(Keyed, Sampler[int]):
    """The indices of one rank, int by int: a drop-in for torch's ``DistributedSampler``."""

    unit = 1

    def __len__(self) -> int:
        """Samples of a whole epoch; the rest of one that is resumed has fewer."""
        return self.partition.size(self.rank)

    def __iter__(self) -> Iterator[int]:
        return Walk(self).iterator()

    def cut(self, indices: NDArray[np.int64]) -> list[Any]:
        """Indices as they are given out: ints."""
        items: list[int] = indices.tolist()
        return items


class KeyedBatchSampler(Keyed, Sampler[NDArray[np.int64]]):
    """The indices of one rank, batch by batch: int64[batch_size], the last one shorter under ``keep``."""

    @property
    def unit(self) -> int:  # type: ignore[override]
        return self.batch_size

    def __len__(self) -> int:
        """Batches of a whole epoch; the rest of one that is resumed has fewer."""
        return self.partition.steps(self.rank)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return Walk(self).iterator()

    def cut(self, indices: NDArray[np.int64]) -> list[Any]:
        """Indices as they are given out: an array for each batch."""
        whole = len(indices) // self.batch_size * self.batch_size
        batches = list(indices[:whole].reshape(-1, self.batch_size))
        return batches + [indices[whole:]] * (whole < len(indices))

"""our sampler without an index list, and batches gathered from the shared copy into reused buffers.

The order is a keyed permutation, computed where it is needed: memory O(1) at any size. Unshuffled, 8 samples,
2 ranks, batch 2::

    step      0      1
    rank 0   0 1    4 5
    rank 1   2 3    6 7
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from shardlab.datapath._buffers import BufferPool
from shardlab.datapath._keyed import BatchReader, KeyedPlace, Order
from shardlab.datapath._torch import dataloader_options
from shardlab.errors import UsageError
from shardlab.index.place import Followed
from shardlab.plan import Plan
from shardlab.store import Store
from shardlab.world import World

STORES = ("shared", "private", "inherited", "mmap")
STORE_REASONS = {"reader": "every rank reads"}
TAILS = ("pad", "drop", "keep")
PLACE = "keyed"  # in an epoch, on any number of ranks; paths of one place go on with each other's
LAYOUT = "batches"


def open(store: Store, plan: Plan, world: World) -> KeyedLoader:
    """``pad`` starts again from the front of the epoch's order until each rank has full batches."""
    if store.iterable or plan.samples is None:
        raise UsageError(
            "--sampler keyed needs a dataset with indices", "an iterable dataset", ["accelerate"]
        )
    return KeyedLoader(store, plan, world)


class KeyedLoader(KeyedPlace):
    """Without workers batches are read in this process; with workers by a DataLoader in the same order."""

    def __init__(self, store: Store, plan: Plan, world: World) -> None:
        super().__init__(plan, world)
        self.store = store
        self._reader = BatchReader(store.raw, store.collate_fn.collate, store.counter.add)
        self._pool = BufferPool()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        order = self.order_from(self.bookmark.next)
        batches = self._from_workers(order) if self.plan.workers else self._here(order)
        return Followed(batches, self.bookmark, self.progress(order))

    def _here(self, order: Order) -> Iterator[tuple[Any, Any]]:
        for step in range(order.partition.steps(self.world.rank)):
            yield self._batch(order.indices(self.world.rank, step))

    def _batch(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Any, Any]:
        rows = self._reader.rows
        if rows is None:
            return self._reader.read(indices), indices
        raw = [self._pool.lend(len(indices) * nbytes) for nbytes in rows.row_bytes]
        self._reader.gather(indices, [flat.reshape(len(indices), -1) for flat in raw])
        return rows.assemble(rows.as_tensors(raw, len(indices))), indices

    def _from_workers(self, order: Order) -> Iterator[tuple[Any, Any]]:
        steps = order.partition.steps(self.world.rank)
        batches = (order.indices(self.world.rank, step).tolist() for step in range(steps))
        loader: DataLoader[Any] = DataLoader(
            self.store.indexed, batch_sampler=_Once(batches), **dataloader_options(self.store, self.plan)
        )
        return iter(loader)

    def close(self) -> None:
        """Nothing is held between epochs."""


class _Once:
    """A batch sampler over an iterator: one epoch."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches

"""our sampler without an index list, and batches gathered from the shared copy into reused buffers.

The order is a keyed permutation, computed where it is needed: memory O(1) at any size. Unshuffled, 8 samples,
2 ranks, batch 2::

    step      0      1
    rank 0   0 1    4 5
    rank 1   2 3    6 7
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from shardlab.datapath._buffers import BufferPool
from shardlab.datapath._keyed import BatchReader, Order, as_tensors
from shardlab.datapath._torch import dataloader_options
from shardlab.errors import UsageError
from shardlab.plan import Plan
from shardlab.store import Store
from shardlab.world import World

STORES = ("shared", "private", "inherited", "mmap")
STORE_REASONS = {"reader": "every rank reads"}
TAILS = ("pad", "drop", "keep")
LAYOUT = "batches"


def open(store: Store, plan: Plan, world: World) -> KeyedLoader:
    """``pad`` starts again from the front of the epoch's order until each rank has full batches."""
    if store.iterable or plan.samples is None:
        raise UsageError(
            "--sampler keyed needs a dataset with indices", "an iterable dataset", ["accelerate"]
        )
    return KeyedLoader(store, plan, world)


class KeyedLoader:
    """Without workers batches are read in this process; with workers by a DataLoader in the same order."""

    def __init__(self, store: Store, plan: Plan, world: World) -> None:
        self.store, self.plan, self.world = store, plan, world
        self._reader = BatchReader(store.raw, store.collate_fn.collate, store.counter.add)
        self._pool = BufferPool()
        self._epoch = self._consumed = self._step = 0

    @property
    def order(self) -> Order:
        """What is left of the epoch."""
        return Order.of(self.plan, self.world.world_size, self._epoch, self._consumed)

    def __len__(self) -> int:
        return self.order.partition.steps(self.world.rank)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        order = self.order
        self._step = 0
        if self.plan.workers:
            return self._from_workers(order)
        return self._here(order)

    def _here(self, order: Order) -> Iterator[tuple[Any, Any]]:
        for step in range(order.partition.steps(self.world.rank)):
            self._step = step + 1
            yield self._batch(order.indices(self.world.rank, step))
        yield from self._end(order)

    def _batch(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Any, Any]:
        rows = self._reader.rows
        if rows is None:
            return self._reader.read(indices), torch.from_numpy(indices)
        raw = [self._pool.lend(len(indices) * nbytes) for nbytes in rows.row_bytes]
        self._reader.gather(indices, [flat.reshape(len(indices), -1) for flat in raw])
        return rows.assemble(as_tensors(rows, raw, len(indices))), torch.from_numpy(indices)

    def _from_workers(self, order: Order) -> Iterator[tuple[Any, Any]]:
        steps = order.partition.steps(self.world.rank)
        batches = (order.indices(self.world.rank, step).tolist() for step in range(steps))
        loader: DataLoader[Any] = DataLoader(
            self.store.indexed, batch_sampler=_Once(batches), **dataloader_options(self.store, self.plan)
        )
        # No generator: it would keep the last batch alive.
        return chain(map(self._counted, count(1), loader), self._end(order))

    def _end(self, order: Order) -> Iterator[tuple[Any, Any]]:
        """Yields nothing. A rank with fewer steps is through with the epoch when it asked for one more."""
        self._step = order.partition.steps(0)
        yield from ()

    def _counted(self, step: int, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        self._step = step
        return pair

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next, from its beginning."""
        self._epoch, self._consumed, self._step = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many samples of it all ranks together are through with."""
        consumed = self.order.partition.consumed(self._step)
        return {"epoch": self._epoch, "consumed": consumed, "seed": self.plan.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there, on any number of ranks: O(1), nothing is read again."""
        if state["seed"] != self.plan.seed:
            raise UsageError("the seed must be the one that was saved", self.plan.seed, [state["seed"]])
        self._epoch, self._consumed, self._step = state["epoch"], state["consumed"], 0

    def close(self) -> None:
        """Nothing is held between epochs."""


class _Once:
    """A batch sampler over an iterator: one epoch."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches

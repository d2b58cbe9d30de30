"""``--sampler distributed`` for lists of records, with memory read at the beginning of the epoch too.

All ranks are held once each of their workers has handed over its first batch, so that all have started, and
before the last step as in every run. ``hold--1.json`` in the run's folder is the first reading. Workers read
every object of a record, as pickling it does, and hand over one number for it: nothing else is in flight.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from shardlab.datapath import TorchLoader, dataloader_options
from shardlab.measure.hold import Holder
from shardlab.plan import Plan
from shardlab.store import IndexedCollate, ReadCounter, Store
from shardlab.world import World

BEGINNING = -1  # stands where an epoch's number does


def open(store: Store, plan: Plan, world: World) -> HeldTwice:
    """For one epoch with workers, in a run by ``shardlab.profile``."""
    assert isinstance(store.counter, ReadCounter)
    sampler: DistributedSampler[Any] = DistributedSampler(
        store.indexed, num_replicas=world.world_size, rank=world.rank, seed=plan.seed
    )
    options = dataloader_options(store, plan) | {"collate_fn": IndexedCollate(pickled_sizes)}
    loader = DataLoader(store.indexed, plan.batch_size, sampler=sampler, **options)
    holder = Holder.connect(store.counter.path.parent, world.rank)
    return HeldTwice(TorchLoader(loader, sampler.set_epoch), holder, plan.workers)


def pickled_sizes(records: Sequence[Any]) -> torch.Tensor:
    """Bytes of each record when pickled: int64 of shape (records,)."""
    return torch.tensor([len(pickle.dumps(record)) for record in records])


class HeldTwice:
    """A loader that waits after ``steps`` steps until memory was read; all else is the inner loader's."""

    def __init__(self, inner: TorchLoader, holder: Holder, steps: int) -> None:
        self.inner = inner
        self.holder = holder
        self.steps = steps

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        batches = iter(self.inner)
        for _ in range(self.steps):
            yield next(batches)
        self.holder.hold(BEGINNING)
        yield from batches

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not made yet
            raise AttributeError(name)
        return getattr(self.inner, name)

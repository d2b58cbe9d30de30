"""Data paths of a script that keeps torch's own DataLoader: our samplers over a shared copy, and no more of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from shardlab.datapath import TorchLoader, dataloader_options
from shardlab.plan import Plan
from shardlab.sampler import KeyedBatchSampler, KeyedSampler
from shardlab.store import Store
from shardlab.world import World


def by_sample(store: Store, plan: Plan, world: World) -> TorchLoader:
    """``KeyedSampler`` in the place of ``DistributedSampler``; nothing else of the loader changes."""
    sampler = KeyedSampler(store.indexed, **_options(plan, world))
    options = dataloader_options(store, plan)
    return TorchLoader(
        DataLoader(store.indexed, plan.batch_size, sampler=sampler, **options), sampler.set_epoch
    )


def by_batch(store: Store, plan: Plan, world: World) -> TorchLoader:
    """``KeyedBatchSampler`` and ``batch_size=None``: the dataset gets the indices of a batch as its index."""
    sampler = KeyedBatchSampler(store.indexed, **_options(plan, world))
    options = dataloader_options(store, plan) | {"collate_fn": as_it_is}
    loader: DataLoader[Any] = DataLoader(Gathered(store), batch_size=None, sampler=sampler, **options)
    return TorchLoader(loader, sampler.set_epoch)


def as_it_is(pair: Any) -> Any:
    """A batch is one already."""
    return pair


class Gathered(Dataset[Any]):
    """Batches of a shared dataset of arrays by the array of their indices, with these; the reads are counted."""

    def __init__(self, store: Store) -> None:
        self.shared, self.counter = store.raw, store.counter

    def __len__(self) -> int:
        return len(self.shared)

    def __getitem__(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, NDArray[np.int64]]:
        self.counter.add(len(indices))
        return self.shared[indices], indices


def _options(plan: Plan, world: World) -> dict[str, Any]:
    return {
        "num_replicas": world.world_size, "rank": world.rank, "batch_size": plan.batch_size,
        "shuffle": plan.shuffle, "seed": plan.seed, "tail": plan.tail,
    }  # fmt: skip

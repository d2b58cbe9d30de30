"""torch's DistributedSampler and DataLoader: every rank reads its own, strided share of the indices.

Unshuffled, 8 samples, 2 ranks, batch 2::

    step      0      1
    rank 0   0 2    4 6
    rank 1   1 3    5 7
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

from shardlab.datapath._torch import TorchLoader, dataloader_options
from shardlab.errors import UsageError
from shardlab.plan import Plan
from shardlab.store import Store
from shardlab.world import World

STORES = ("private", "inherited", "shared", "mmap")
STORE_REASONS = {"reader": "every rank reads"}
TAILS = ("pad", "drop")
LAYOUT = "strided"
IGNORES = {"even_batches": "DistributedSampler always pads or drops"}


def open(store: Store, plan: Plan, world: World) -> TorchLoader:
    """``pad`` repeats up to W - 1 samples, so a last batch may be short; ``drop`` delivers full rounds."""
    if store.iterable:
        raise UsageError(
            "--sampler distributed needs a dataset with indices",
            "an iterable dataset",
            ["accelerate", "accelerate-shard"],
        )
    drop = plan.tail == "drop"
    sampler: DistributedSampler[Any] = DistributedSampler(
        store.indexed,
        num_replicas=world.world_size,
        rank=world.rank,
        shuffle=plan.shuffle,
        seed=plan.seed,
        drop_last=drop,
    )
    loader = DataLoader(
        store.indexed, plan.batch_size, sampler=sampler, drop_last=drop, **dataloader_options(store, plan)
    )
    return TorchLoader(loader, sampler.set_epoch)

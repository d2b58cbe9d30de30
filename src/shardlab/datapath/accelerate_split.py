"""Accelerate with split_batches=True: every rank reads its slice of each global batch.

The loader is given W x ``--batch-size``, so that all data paths have one global batch. Unshuffled, 8 samples,
2 ranks, batch 2: as ``accelerate-shard``.
"""

from __future__ import annotations

from shardlab.datapath._accelerate import prepare
from shardlab.datapath._torch import TorchLoader
from shardlab.plan import Plan
from shardlab.store import Store
from shardlab.world import World

STORES = ("private", "inherited", "shared", "mmap")
STORE_REASONS = {"reader": "every rank reads"}
TAILS = ("pad", "drop", "keep")
LAYOUT = "batches"


def open(store: Store, plan: Plan, world: World) -> TorchLoader:
    """``keep`` gives some ranks fewer steps, and ``len`` of them then says too much."""
    return prepare(
        store,
        plan,
        world,
        plan.batch_size * world.world_size,
        dispatch_batches=False,
        split_batches=True,
        even_batches=plan.tail != "keep",
    )

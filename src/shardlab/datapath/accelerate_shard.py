"""Accelerate's default for map-style data, BatchSamplerShard: every rank reads every W-th batch.

Unshuffled, 8 samples, 2 ranks, batch 2::

    step      0      1
    rank 0   0 1    4 5
    rank 1   2 3    6 7
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
    """``pad`` starts again from the epoch's first samples until each rank has equal, full batches."""
    return prepare(
        store, plan, world, plan.batch_size, dispatch_batches=False, even_batches=plan.tail != "keep"
    )

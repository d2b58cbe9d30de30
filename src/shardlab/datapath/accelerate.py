"""Accelerate with dispatch_batches=True: rank 0 reads the global batch and broadcasts it, each rank slices.

Unshuffled, 8 samples, 2 ranks, batch 2::

    step      0      1
    rank 0   0 1    4 5      (rank 0 reads all 8)
    rank 1   2 3    6 7
"""

from __future__ import annotations

import operator
import traceback
from typing import Any

from accelerate.utils import recursively_apply

from shardlab.datapath._accelerate import prepare
from shardlab.datapath._torch import TorchLoader
from shardlab.dataset import describe_sample
from shardlab.errors import RunFailed, UsageError
from shardlab.plan import Plan
from shardlab.store import Store, difference
from shardlab.world import World

STORES = ("private", "inherited", "reader", "shared", "mmap")
TAILS = ("pad", "drop")
LAYOUT = "batches"
READER = 0
NOTE = "Accelerate's default for map-style data is not this but accelerate-shard"
IGNORES = {"even_batches": "the dispatching loader pads by itself and never looks at it"}


def open(store: Store, plan: Plan, world: World) -> TorchLoader:
    """``pad`` repeats up to W - 1 samples and shortens the last batch; indices travel with their samples."""
    round_samples = world.world_size * plan.batch_size
    if plan.tail == "drop" and plan.samples is not None and plan.samples < round_samples:
        raise UsageError(  # upstream would fail on all ranks, with a broadcast of nothing
            f"--sampler accelerate --tail drop needs a full round of {round_samples} samples",
            plan.samples,
            cure="use --tail pad, or a smaller --batch-size",
        )
    own_collate = hasattr(store.raw, "collate_fn")  # which may well make tensors of what is none
    if world.rank == READER and not store.iterable and plan.samples and not own_collate:
        refuse_what_cannot_be_sent(describe_sample(store.raw[0]))
    return prepare(store, plan, world, plan.batch_size, loader_type=DispatchLoader, dispatch_batches=True)


class DispatchLoader(TorchLoader):
    """Names the field where the batches that rank 0 joins do not fit each other; upstream only says so."""

    def __next__(self) -> tuple[Any, Any]:
        try:
            return super().__next__()
        except RuntimeError as error:
            rows = _rows(_joined_batches(error))
            names = [f"batch {number} of the round" for number in range(len(rows))]
            differ = difference(rows, names, "batch") if rows else ""
            if not differ:
                raise
            raise RunFailed(
                f"rank {READER}: batches that are dispatched together must have one shape, but {differ}. "
                "Cure: pad or crop samples in the dataset, or use --sampler accelerate-shard"
            ) from error


def _joined_batches(error: RuntimeError) -> list[Any]:
    """The batches that upstream tried to join when it failed."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "_fetch_batches":
            return [batch for batch, _indices in frame.f_locals.get("batches") or ()]
    return []


def _rows(batches: list[Any]) -> list[Any]:
    """The structure of one row of each batch: the last one may well have fewer rows."""
    first = operator.itemgetter(0)
    return [describe_sample(recursively_apply(first, batch)) for batch in batches]


def refuse_what_cannot_be_sent(sample: Any, field: str = "sample") -> None:
    """Raise UsageError naming the first field that is no tensor: upstream fails on it after it has begun.

    >>> refuse_what_cannot_be_sent({"kind": "dict", "keys": ["id"], "items": [{"kind": "str", "length": 3}]})
    Traceback (most recent call last):
    ...
    shardlab.errors.UsageError: rank 0: --sampler accelerate can broadcast tensors only, but got \
"sample['id'] of type str". Cure: use --sampler accelerate-shard, or turn the field into numbers
    """
    kind = sample["kind"]
    keys = sample.get("keys", range(len(sample.get("items", ()))))
    for key, item in zip(keys, sample.get("items", ()), strict=True):
        refuse_what_cannot_be_sent(item, f"{field}[{key!r}]")
    if kind in ("str", "bytes", "none", "object"):
        raise UsageError(
            "rank 0: --sampler accelerate can broadcast tensors only",
            f"{field} of type {sample.get('type', kind)}",
            cure="use --sampler accelerate-shard, or turn the field into numbers",
        )

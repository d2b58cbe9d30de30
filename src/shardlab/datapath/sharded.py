"""a folder of shards on disk (see shardlab.shard): every rank maps and reads its own, contiguous part.

Unshuffled, 8 samples, 2 ranks, batch 2::

    step      0      1
    rank 0   0 1    2 3
    rank 1   4 5    6 7
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Sampler

from shardlab.datapath._torch import TorchLoader, dataloader_options
from shardlab.index.mixing import mix2
from shardlab.plan import Plan
from shardlab.store import Store
from shardlab.world import World

STORES = ("mmap",)
STORE_REASONS = {
    "private": "its shards are mapped where they lie",
    "inherited": "its shards are mapped where they lie",
    "reader": "every rank reads its own part",
    "shared": "its shards are mapped where they lie",
}
TAILS = ("pad", "drop", "keep")
LAYOUT = "blocks"
DATASET_KINDS = ("shards",)


def open(store: Store, plan: Plan, world: World) -> TorchLoader:
    """A shard at the border of two parts is opened by both ranks; all others by one."""
    assert plan.samples is not None
    sampler = PartSampler(plan.samples, plan, rank=world.rank, world_size=world.world_size)
    loader = DataLoader(
        store.indexed,
        plan.batch_size,
        sampler=sampler,
        drop_last=plan.tail == "drop",
        **dataloader_options(store, plan),
    )
    return TorchLoader(loader, sampler.set_epoch)


class PartSampler(Sampler[int]):
    """The indices of one rank's part, in order or shuffled within the part."""

    def __init__(self, samples: int, plan: Plan, *, rank: int, world_size: int) -> None:
        self.samples, self.plan, self.rank, self.world_size = samples, plan, rank, world_size
        self.epoch = 0

    def __len__(self) -> int:
        return part_size(self.samples, self.plan.tail, rank=self.rank, world_size=self.world_size)

    def __iter__(self) -> Iterator[int]:
        key = None
        if self.plan.shuffle:
            # A hash of the pair, not the sum: seeds s and s + 1 must not share epochs.
            seed, epoch = np.asarray([self.plan.seed]), np.asarray([self.epoch])
            key = (int(mix2(seed.astype(np.uint64), epoch.astype(np.uint64))[0]), self.rank)
        indices = part(self.samples, self.plan.tail, rank=self.rank, world_size=self.world_size, key=key)
        yield from indices.tolist()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = epoch


def part(
    samples: int, tail: str, *, rank: int, world_size: int, key: tuple[int, ...] | None = None
) -> NDArray[np.int64]:
    """The indices of a rank, shape (part_size,), shuffled by ``key`` where one is given.

    Parts are ``[samples * r // W, samples * (r + 1) // W)`` and differ by one at the most. ``pad`` repeats
    the first sample of a shorter part, ``drop`` cuts the longer ones, ``keep`` leaves them. A rank without a
    sample of its own pads with sample 0.

    >>> [part(7, "pad", rank=r, world_size=3).tolist() for r in range(3)]
    [[0, 1, 0], [2, 3, 2], [4, 5, 6]]
    """
    start, stop = samples * rank // world_size, samples * (rank + 1) // world_size
    indices = np.arange(start, stop, dtype=np.int64)
    if key is not None:
        np.random.default_rng(key).shuffle(indices)
    size = part_size(samples, tail, rank=rank, world_size=world_size)
    return np.resize(indices if indices.size else np.zeros(1, np.int64), size)


def part_size(samples: int, tail: str, *, rank: int, world_size: int) -> int:
    """How many samples a rank delivers, its repeats included."""
    if tail == "pad":
        return -(-samples // world_size)
    if tail == "drop":
        return samples // world_size
    return samples * (rank + 1) // world_size - samples * rank // world_size

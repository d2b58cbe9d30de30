"""Which indices each rank is given by a sampler, found by asking it in this process, rank after rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from shardlab.config import Tail
from shardlab.sampler import KeyedBatchSampler

Batches = list[list[int]]
"""Of one rank: the indices of each of its batches."""
Way = Callable[[int, int, int, int], Batches]
"""``way(samples, world_size, batch_size, rank)``: one rank's batches in the order of the dataset, unshuffled."""


@dataclass(frozen=True)
class Delivered:
    """One epoch of all ranks of ``samples``. ``most``: how often the sample came that came most."""

    samples: int
    indices: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def distinct(self) -> int:
        """Different samples that came."""
        return len(set(self.indices))

    @property
    def duplicates(self) -> int:
        """Deliveries of a sample that had come before."""
        return len(self.indices) - self.distinct

    @property
    def missing(self) -> int:
        """Samples that never came."""
        return self.samples - self.distinct

    @property
    def most(self) -> int:
        """How often the sample came that came most; 0 where none came."""
        return max(Counter(self.indices).values(), default=0)


def delivered(way: Way, samples: int, world_size: int, batch_size: int) -> Delivered:
    """What ``way`` gives to all ranks, in order of rank."""
    by_rank = [way(samples, world_size, batch_size, rank) for rank in range(world_size)]
    indices = tuple(index for batches in by_rank for batch in batches for index in batch)
    return Delivered(samples, indices, tuple(len(batches) for batches in by_rank))


def distributed(samples: int, world_size: int, batch_size: int, rank: int) -> Batches:
    """torch's sampler in a plain DataLoader."""
    return list(BatchSampler(_own(samples, world_size, rank), batch_size, drop_last=False))


def accelerated(even: bool, samples: int, world_size: int, batch_size: int, rank: int) -> Batches:
    """What ``Accelerator.prepare`` makes of a plain DataLoader, with ``even_batches`` or without."""
    plain = BatchSampler(SequentialSampler(range(samples)), batch_size, drop_last=False)
    return list(BatchSamplerShard(plain, world_size, rank, even_batches=even))


def keyed(tail: Tail, samples: int, world_size: int, batch_size: int, rank: int) -> Batches:
    """shardlab's sampler."""
    own = KeyedBatchSampler(
        range(samples), num_replicas=world_size, rank=rank, batch_size=batch_size, shuffle=False, tail=tail
    )
    return [batch.tolist() for batch in own]


def sharded_twice(samples: int, world_size: int, batch_size: int, rank: int) -> Batches:
    """A sampler that knows its rank, in a DataLoader that is then prepared, which divides it again."""
    plain = BatchSampler(_own(samples, world_size, rank), batch_size, drop_last=False)
    return list(BatchSamplerShard(plain, world_size, rank, even_batches=True))


def _own(samples: int, world_size: int, rank: int) -> Iterable[int]:
    dataset: Any = range(samples)  # of which it asks the length alone
    return DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=False)


WAYS: dict[str, Way] = {
    "DistributedSampler": distributed,
    "accelerate, even_batches": partial(accelerated, True),
    "accelerate, not even": partial(accelerated, False),
    "keyed, pad": partial(keyed, "pad"),
    "keyed, drop": partial(keyed, "drop"),
    "keyed, keep": partial(keyed, "keep"),
}

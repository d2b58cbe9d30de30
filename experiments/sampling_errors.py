"""Known mistakes in who gets which sample, done on purpose and counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler

import deliveries_of
from shardlab.index.order import order_hash

TOLERANCE = 0.01  # of a share that was drawn at random
DLIO = "https://github.com/argonne-lcf/dlio_benchmark/issues/340, samples missed and repeated, no figure"
TWICE = "https://github.com/huggingface/accelerate/issues/4075, 1/ranks of the data"
EPOCH = "documentation of torch.utils.data.DistributedSampler: the same order in each epoch"


@dataclass(frozen=True)
class Error:
    """One mistake. ``expected`` is arithmetic; ``published`` empty where the source gives no figure."""

    name: str
    samples: int
    world_size: int
    measured: float
    expected: float
    published: float | None
    source: str
    agrees: str


def errors() -> Iterator[Error]:
    """All of them."""
    for samples in (10, 100, 10_000):
        share = missed_by_chance(samples)
        law = (1 - 1 / samples) ** samples  # nobody drew it in as many draws; 1/e for many samples
        yield error(f"each index drawn anew, of {samples}: missing", samples, 1, share, law, None, DLIO)
    for ranks in (2, 4):
        samples = 64 * ranks * ranks
        found = deliveries_of.delivered(deliveries_of.sharded_twice, samples, ranks, 8)
        share = found.distinct / samples
        yield error(f"divided twice among {ranks} ranks: arrived", samples, ranks, share, 1 / ranks, 1 / ranks, TWICE)
    for said, epochs in (("set_epoch forgotten", [0] * 5), ("set_epoch called", list(range(5)))):
        orders = float(len({hash_of(epoch) for epoch in epochs}))
        claimed = 1.0 if "forgotten" in said else 5.0
        yield error(f"{said}: orders in 5 epochs", 1001, 4, orders, claimed, claimed, EPOCH)


def error(
    name: str, samples: int, ranks: int, measured: float, expected: float, published: float | None, source: str
) -> Error:
    """The row, with what agrees."""
    due = expected if published is None else published
    agrees = "yes" if abs(measured - due) <= TOLERANCE * max(1.0, due) else "no"
    return Error(name, samples, ranks, measured, expected, published, source, agrees)


def missed_by_chance(samples: int, draws: int = 200_000) -> float:
    """The share that never comes in ``samples`` draws of any of ``samples``, over some ``draws`` in all."""
    random = np.random.default_rng(0)
    rounds = max(1, draws // samples)
    missed = [samples - len(np.unique(random.integers(0, samples, samples))) for _ in range(rounds)]
    return float(np.mean(missed)) / samples


def hash_of(epoch: int, samples: int = 1001, ranks: int = 4) -> int:
    """Hash of the order in which ``DistributedSampler`` gives samples to all ranks after ``set_epoch(epoch)``."""
    dataset: Any = range(samples)  # of which it asks the length alone
    columns = []
    for rank in range(ranks):
        sampler: DistributedSampler[int] = DistributedSampler(dataset, ranks, rank)
        sampler.set_epoch(epoch)
        columns.append(list(sampler))
    order = np.array(columns).T.ravel()  # rank by rank within a step
    return order_hash(np.arange(len(order)), order)

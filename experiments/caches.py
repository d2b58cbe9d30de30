"""Hit rates of caches under shuffled epochs: simulated, and measured with ranks that wait for what they miss."""

from __future__ import annotations

import math
import multiprocessing
import queue
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoding import spin

ROW_BYTES = 4096
MISS_S, COMPUTE_S = 2e-3, 2e-4  # asleep, as on a disk; of processor time
TIMEOUT_S = 120.0

Epochs = list[NDArray[np.int64]]


def shuffled(samples: int, epochs: int) -> Epochs:
    """A new order of all samples for each epoch."""
    random = np.random.default_rng(0)
    return [random.permutation(samples) for _ in range(epochs)]


def lru_hit_ratio(accesses: Iterable[Iterable[int]], capacity: int) -> float:
    """Hits over accesses of a cache that evicts what was used longest ago; the first epoch fills it, uncounted."""
    cached: OrderedDict[int, None] = OrderedDict()
    hits = counted = 0
    for epoch, order in enumerate(accesses):
        for index in order:
            hit = index in cached
            if hit:
                cached.move_to_end(index)
            else:
                cached[index] = None
                if len(cached) > capacity:
                    cached.popitem(last=False)
            if epoch:
                hits, counted = hits + hit, counted + 1
    return hits / counted


def static_hit_ratio(accesses: Iterable[Iterable[int]], capacity: int) -> float:
    """The same of one that keeps what came first and evicts nothing."""
    cached: set[int] = set()
    hits = counted = 0
    for epoch, order in enumerate(accesses):
        for index in order:
            if epoch:
                hits, counted = hits + (index in cached), counted + 1
            elif len(cached) < capacity:
                cached.add(index)
    return hits / counted


def lru_law(cache_ratio: float) -> float:
    """The hit rate of LRU for many samples in a new order each epoch.

    A sample at place u of one epoch and v of the next has 1 - u (1 - v) of all others used in between, and is a hit
    where the cache holds those: for uniform u and v, u (1 - v) exceeds 1 - c with probability c + (1 - c) ln(1 - c).
    """
    left = 1 - cache_ratio
    return cache_ratio + (left * math.log(left) if left > 0 else 0.0)


@dataclass(frozen=True)
class Seen:
    """One rank's epoch."""

    hits: int
    samples: int
    waited_s: float
    wall_s: float


def node(
    samples: int, ranks: int, cached: list[NDArray[np.int64]], timeout_s: float = TIMEOUT_S
) -> list[Seen]:
    """Ranks as processes, each a part of one shuffled epoch; ``cached[r]`` is what a hit is for rank ``r``.

    Raises RuntimeError where no rank ends for ``timeout_s``, as when one has died and the others wait for it.
    """
    context = multiprocessing.get_context("fork")
    (order,) = shuffled(samples, 1)
    barrier, answers = context.Barrier(ranks), context.Queue()
    processes = [
        context.Process(target=_rank, args=(order[rank::ranks], cached[rank], barrier, answers), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        return [answers.get(timeout=timeout_s) for _ in processes]
    except queue.Empty:
        raise RuntimeError(f"of {ranks} ranks some did not end within {timeout_s:g} s") from None
    finally:
        for process in processes:
            process.terminate()  # those that have answered have nothing left to do
            process.join()


def _rank(order: NDArray[np.int64], cached: NDArray[np.int64], barrier: Any, answers: Any) -> None:
    where = {int(index): place for place, index in enumerate(cached)}
    rows = np.ones((len(cached), ROW_BYTES), np.uint8)
    barrier.wait()
    started, waited, hits = time.perf_counter(), 0.0, 0
    for index in order.tolist():
        asked = time.perf_counter()
        place = where.get(index)
        if place is None:
            time.sleep(MISS_S)
        else:
            hits += 1
            rows[place].sum()
        waited += time.perf_counter() - asked
        spin(COMPUTE_S)
    answers.put(Seen(hits, len(order), waited, time.perf_counter() - started))


def own_shards(samples: int, ranks: int, capacity: int) -> Iterator[NDArray[np.int64]]:
    """What each rank caches for itself: its own random samples."""
    for rank in range(ranks):
        yield np.random.default_rng(rank + 1).choice(samples, capacity, replace=False)


def one_shard(samples: int, ranks: int, capacity: int) -> list[NDArray[np.int64]]:
    """What all ranks find in one cache of the node that has the room of all of theirs."""
    kept = np.random.default_rng(1).choice(samples, min(samples, ranks * capacity), replace=False)
    return [kept] * ranks

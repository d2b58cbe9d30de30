"""Streams of shuffled indices, and what one costs in a process that has done nothing else.

Shared by ``experiments/index_stream.py`` and ``tests/benchmarks/test_index_stream.py``.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from shardlab.index.permutation import BLOCK, Permutation, key_of
from shardlab.measure.hold import trim
from shardlab.sampler import KeyedBatchSampler, KeyedSampler

BATCH = 64
RANK = 1  # of several ranks; a single one is rank 0
WARM_UP = 1 << 17  # samples: beyond the table that makes small permutations

Stream = Callable[[int, int, int], Iterator[Any]]
"""``stream(n, world_size, start)``: what one rank is given of n samples, from position ``start`` of the order."""


@dataclass(frozen=True)
class Draw:
    """What is drawn: ``items`` of the stream from each of ``starts``, or all of it."""

    stream: Stream
    n: int
    world_size: int
    starts: tuple[int, ...] = (0,)
    items: int | None = None


def keyed_ints(n: int, world_size: int, start: int = 0) -> Iterator[int]:
    """Int by int."""
    return iter(_at(KeyedSampler(n, **_place(world_size), batch_size=BATCH), start))


def keyed_batches(n: int, world_size: int, start: int = 0) -> Iterator[Any]:
    """An int64 array for each batch."""
    return iter(_at(KeyedBatchSampler(n, **_place(world_size), batch_size=BATCH), start))


def keyed_chunks(n: int, world_size: int, start: int = 0) -> Iterator[Any]:
    """The bare permutation, BLOCK positions at a time: the whole order, which one rank is given."""
    assert world_size == 1
    order = Permutation(n, key_of(0, 0))
    return (order.chunk(first, min(n, first + BLOCK)) for first in range(start, n, BLOCK))


def distributed_ints(n: int, world_size: int, start: int = 0) -> Iterator[int]:
    """torch's sampler, which begins at the front."""
    assert start == 0
    dataset: Any = range(n)
    return iter(DistributedSampler(dataset, **_place(world_size)))


def randperm_ints(n: int, world_size: int, start: int = 0) -> Iterator[int]:
    """A list of all indices, the least that torch's samplers make."""
    assert (world_size, start) == (1, 0)
    return iter(torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist())


def _place(world_size: int) -> dict[str, int]:
    return {"num_replicas": world_size, "rank": RANK % world_size}


def _at(sampler: Any, start: int) -> Any:
    if start:
        sampler.load_state_dict(sampler.state_dict() | {"consumed": start})
    return sampler


def run_from(draw: Draw, start: int = 0) -> tuple[float, float]:
    """Draw what is drawn from one start. Returns seconds to the first item and to the last."""
    began = time.perf_counter()
    items = draw.stream(draw.n, draw.world_size, start)
    next(items)
    first = time.perf_counter() - began
    deque(items if draw.items is None else islice(items, draw.items - 1), maxlen=0)
    return first, time.perf_counter() - began


def run(draw: Draw) -> list[tuple[float, float]]:
    """Draw it all, start by start; see :func:`run_from`."""
    spans = []
    for start in draw.starts:
        spans.append(run_from(draw, start))
        gc.collect()  # a sampler and its iteration know each other: the rest of a chunk would stay till then
    return spans


def seconds(draw: Draw) -> tuple[float, float]:
    """Seconds to the first item, of the slowest start, and seconds in all."""
    spans = run(draw)
    return max(first for first, _ in spans), sum(whole for _, whole in spans)


def traced_bytes(draw: Draw) -> int:
    """Most bytes that Python and NumPy held at once; torch's own tensors are not traced."""
    tracemalloc.start()
    run(draw)
    return tracemalloc.get_traced_memory()[1]


def grown_bytes(draw: Draw) -> int | None:
    """Most resident bytes by which this process grew; None where the kernel does not tell."""
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        return None
    trim()  # what the warm-up left free would hide growth
    clear.write_text("5")  # the peak begins here
    before = _memory("VmRSS")
    run(draw)
    return _memory("VmHWM") - before


def _memory(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def in_fresh_process(measure: Callable[[Draw], Any], draw: Draw) -> Any:
    """``measure(draw)`` in a new process, which has drawn a small stream first: what is loaded late is there.

    It is forked from a server that has imported the libraries and done nothing else: an import takes
    seconds, and most draws a few milliseconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "shardlab.sampler"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, measure, draw))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _answer(out: Any, measure: Callable[[Draw], Any], draw: Draw) -> None:
    run(Draw(draw.stream, WARM_UP, draw.world_size))
    gc.freeze()  # collections between starts need not look at the libraries
    out.send(measure(draw))

"""Shuffled indices of one rank's epoch: computed as they are needed, against lists of all of them.

``pytest tests/benchmarks/test_index_stream.py --benchmark-enable``; ``extra_info`` has nanoseconds for each index
of the dataset, and the bytes that a fresh process grew by at most while it made them.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from shardlab.index.permutation import BLOCK, Permutation, key_of
from shardlab.sampler import KeyedBatchSampler, KeyedSampler

SIZES = [10**6, 10**7]
SMOKE = 10_000
WORLD = {"num_replicas": 4, "rank": 1}


def consume(items: Any) -> None:
    deque(items, maxlen=0)


def keyed_chunks(n: int) -> None:
    order = Permutation(n, key_of(0, 0))
    for start in range(0, n, BLOCK):
        order.chunk(start, min(n, start + BLOCK))


def keyed_ints(n: int) -> None:
    consume(KeyedSampler(n, num_replicas=1, rank=0, batch_size=64))


def keyed_batches(n: int) -> None:
    consume(KeyedBatchSampler(n, num_replicas=1, rank=0, batch_size=64))


def randperm_list(n: int) -> None:
    consume(torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist())


def one_of_four_keyed(n: int) -> None:
    consume(KeyedSampler(n, **WORLD, batch_size=64))


def one_of_four_distributed(n: int) -> None:
    consume(DistributedSampler(range(n), **WORLD))  # type: ignore[arg-type]


WHOLE = [keyed_chunks, keyed_ints, keyed_batches, randperm_list]
PART = [one_of_four_keyed, one_of_four_distributed]


def memory(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def grow(out: Any, make: Callable[[int], None], n: int) -> None:
    make(1000)  # what is imported late
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = memory("VmRSS")
    make(n)
    out.send(memory("VmHWM") - before)


def peak_bytes(make: Callable[[int], None], n: int) -> int | None:
    """Most bytes by which a fresh process grows; None where the kernel does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=grow, args=(theirs, make, n))
    process.start()
    theirs.close()
    try:
        return int(ours.recv())
    except EOFError:
        return None
    finally:
        process.join()


def run(benchmark: Any, make: Callable[[int], None], n: int, group: str) -> None:
    if benchmark.disabled:
        benchmark(make, SMOKE)
        return
    benchmark.group = f"{group}, n = {n}"
    benchmark.extra_info["peak_bytes"] = peak_bytes(make, n)
    benchmark.pedantic(make, (n,), rounds=7, warmup_rounds=1)
    benchmark.extra_info["ns_per_index"] = round(benchmark.stats.stats.median / n * 1e9, 2)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("make", WHOLE)
def test_a_whole_epoch(benchmark: Any, make: Callable[[int], None], n: int) -> None:
    run(benchmark, make, n, "whole epoch")


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("make", PART)
def test_the_part_of_one_rank_of_four(benchmark: Any, make: Callable[[int], None], n: int) -> None:
    run(benchmark, make, n, "one rank of four")


@pytest.mark.parametrize("n", [10**6, 10**9, 10**12])
def test_the_first_index_of_an_epoch(benchmark: Any, n: int) -> None:
    benchmark.group = "first index"
    each = KeyedSampler(n, num_replicas=8, rank=5, batch_size=64)
    assert 0 <= benchmark(lambda: next(iter(each))) < n


@pytest.mark.parametrize("n", [1000, 2**16 - 1, 2**16 + 1, 2**20 + 1, 10**9, 2**32 + 1, 10**12, 2**45])
def test_a_block_at_any_n(benchmark: Any, n: int) -> None:
    """A table is made anew, as at the beginning of an epoch."""
    benchmark.group = "one block"
    count, is_table = min(n, BLOCK), n < 2**16
    made = Permutation(n, key_of(0, 0))
    block = benchmark(lambda: (Permutation(n, 1) if is_table else made).chunk(0, n if is_table else count))
    if not benchmark.disabled:
        benchmark.extra_info["ns_per_index"] = round(benchmark.stats.stats.median / len(block) * 1e9, 2)

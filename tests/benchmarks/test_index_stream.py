"""Shuffled indices of one rank's epoch: computed as they are needed, against lists of all of them.

``pytest tests/benchmarks/test_index_stream.py --benchmark-enable``; ``extra_info`` has nanoseconds for each index
of the dataset, and the bytes that a fresh process grew by at most while it made them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from shardlab.index.permutation import BLOCK, Permutation, key_of
from shardlab.sampler import KeyedSampler

sys.path.append(str(Path(__file__).parents[2] / "experiments"))

from streams import (
    Draw,
    Stream,
    distributed_ints,
    grown_bytes,
    in_fresh_process,
    keyed_batches,
    keyed_chunks,
    keyed_ints,
    randperm_ints,
    run_from,
)

SIZES = [10**6, 10**7]
SMOKE = 10_000
WHOLE = [keyed_chunks, keyed_ints, keyed_batches, randperm_ints]
PART = [keyed_ints, distributed_ints]


def measure(benchmark: Any, draw: Draw, group: str) -> None:
    """A smoke pass over a small stream, or the benchmark with the memory of a fresh process beside it."""
    if benchmark.disabled:
        benchmark(run_from, Draw(draw.stream, SMOKE, draw.world_size))
        return
    benchmark.group = f"{group}, n = {draw.n}"
    benchmark.extra_info["peak_bytes"] = in_fresh_process(grown_bytes, draw)
    benchmark.pedantic(run_from, (draw,), rounds=7, warmup_rounds=1)
    benchmark.extra_info["ns_per_index"] = round(benchmark.stats.stats.median / draw.n * 1e9, 2)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("stream", WHOLE)
def test_a_whole_epoch(benchmark: Any, stream: Stream, n: int) -> None:
    measure(benchmark, Draw(stream, n, world_size=1), "whole epoch")


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("stream", PART)
def test_the_part_of_one_rank_of_four(benchmark: Any, stream: Stream, n: int) -> None:
    measure(benchmark, Draw(stream, n, world_size=4), "one rank of four")


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

"""A batch of rows out of a dataset that ranks share, by each way to get it, against a copy of as many bytes.

``pytest tests/benchmarks/test_gather.py --benchmark-enable --benchmark-columns=median,iqr``; a round is BATCHES
batches in a shuffled order, ``extra_info`` has their bytes/s. ``memcpy`` copies as many bytes that lie in one piece
into memory that is there already: no gather is faster. ``batched`` and ``select_reused`` write into memory that is
used again; the others have the kernel clear new pages for each large batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

import shardlab
from shardlab.datapath._buffers import BufferPool
from shardlab.dataset import DatasetSpec, open_dataset, synthetic
from shardlab.dataset._rows import rows_of
from shardlab.index.permutation import Permutation, key_of
from shardlab.shm import withdraw

Indices = NDArray[np.int64]
Take = Callable[[Indices], torch.Tensor]


@dataclass(frozen=True)
class Size:
    """``samples`` of ``shape``, uint8, and the batches of a round."""

    samples: int
    shape: tuple[int, ...]
    batch: int
    batches: int

    @property
    def args(self) -> str:
        return f"n={self.samples}:{'x'.join(map(str, self.shape))}"

    @property
    def round_bytes(self) -> int:
        return self.batches * self.batch * math.prod(self.shape)


SIZES = {  # 256 MiB each
    "784 B": Size(342_392, (784,), 64, 1000),
    "150 KB": Size(1783, (3, 224, 224), 32, 50),
}
SMOKE = {"784 B": Size(509, (784,), 64, 5), "150 KB": Size(67, (3, 224, 224), 32, 2)}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a rank has it, by OMP_NUM_THREADS."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def sizes(pytestconfig: pytest.Config) -> dict[str, Size]:
    return SIZES if pytestconfig.getoption("benchmark_enable") else SMOKE


@pytest.fixture(scope="module", params=SIZES)
def shared(request: Any, sizes: dict[str, Size]) -> Iterator[tuple[Size, Any]]:
    """A dataset in a memory file, as ``shardlab.share`` gives it to each rank; the file goes with the test."""
    size = sizes[request.param]
    dataset = shardlab.share(lambda: open_dataset(DatasetSpec(f"synthetic:{size.args}")))
    yield size, dataset
    withdraw(dataset.note.memfd)
    withdraw(dataset.note.skeleton)


def batched(dataset: Any, size: Size) -> Take:
    """What `keyed` does in a rank: one gather into a buffer that comes back when the batch has died."""
    rows, pool = rows_of(dataset), BufferPool()
    assert rows is not None

    def take(indices: Indices) -> torch.Tensor:
        flat = pool.lend(len(indices) * math.prod(size.shape))
        rows.take(indices, [flat.reshape(len(indices), -1)])
        return torch.from_numpy(flat).view(-1, *size.shape)

    return take


def select(dataset: Any, _size: Size) -> Take:
    return lambda indices: torch.index_select(dataset.tree, 0, torch.from_numpy(indices))


def select_reused(dataset: Any, size: Size) -> Take:
    out = torch.empty((size.batch, *size.shape), dtype=torch.uint8)
    return lambda indices: torch.index_select(dataset.tree, 0, torch.from_numpy(indices), out=out)


def collate(dataset: Any, _size: Size) -> Take:
    """What a stock DataLoader does: sample by sample, then a stack."""
    return lambda indices: default_collate([dataset[index] for index in indices.tolist()])


def memcpy(dataset: Any, size: Size) -> Take:
    """Not these rows, but as many that follow the first of them."""
    data, out = dataset.tree.numpy(), np.empty((size.batch, *size.shape), np.uint8)

    def take(indices: Indices) -> torch.Tensor:
        start = min(int(indices[0]), size.samples - size.batch)
        np.copyto(out, data[start : start + size.batch])
        return torch.from_numpy(out)

    return take


def take_all(take: Take, batches: Sequence[Indices]) -> None:
    for indices in batches:
        take(indices)


@pytest.mark.parametrize("way", [batched, select, select_reused, collate, memcpy])
def test_batches_of_a_shared_dataset(
    benchmark: Any, way: Callable[[Any, Size], Take], shared: tuple[Size, Any], pytestconfig: pytest.Config
) -> None:
    size, dataset = shared
    order = Permutation(size.samples, key_of(0, 0)).chunk(0, size.batches * size.batch)
    batches, take = list(order.reshape(-1, size.batch)), way(dataset, size)
    benchmark.group = f"{math.prod(size.shape)} B x {size.batch}"
    rounds = int(pytestconfig.getoption("benchmark_min_rounds"))
    benchmark.pedantic(take_all, (take, batches), rounds=rounds, warmup_rounds=1)
    if not benchmark.disabled:
        benchmark.extra_info["bytes_per_s"] = round(size.round_bytes / benchmark.stats.stats.median)
    if way is not memcpy:
        due = synthetic.rows(synthetic.parse(size.args), batches[-1])  # made anew, not read
        assert torch.equal(take(batches[-1]), due)

"""A batch across a process boundary, by each way that a data path may send it; the receiver reads every byte.

``pytest tests/benchmarks/test_transport.py --benchmark-enable --benchmark-columns=median,iqr``; a round is all
batches of a stream, ``extra_info`` has their bytes/s. Nothing is left to do but to send: a row of the dataset is a
whole batch, so that the sender copies it once, to where it goes, and decodes and shuffles nothing.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import shardlab
from shardlab.dataset._arrays import ArrayDataset
from shardlab.process import die_with_parent

Stream = Callable[[], Iterator[Any]]
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Size:
    batch: int
    sample_bytes: int
    batches: int

    def rows(self) -> torch.Tensor:
        """Whole batches, one a row, no two alike: uint8 of shape (batches, batch, sample_bytes)."""
        shape = (self.batches, self.batch, self.sample_bytes)
        return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


SIZES = {"784 B x 64": Size(64, 784, 2000), "150 KB x 32": Size(32, 3 * 224 * 224, 40)}
SMOKE = {"784 B x 64": Size(64, 784, 7), "150 KB x 32": Size(32, 3 * 224 * 224, 3)}


@contextmanager
def worker(rows: torch.Tensor, _folder: Path) -> Iterator[Stream]:
    """A stock DataLoader's worker: it stacks the batch in a new piece of shared memory and sends its name."""
    loader: DataLoader[Any] = DataLoader(
        ArrayDataset(rows), 1, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    yield lambda: iter(loader)
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()  # type: ignore[attr-defined]


@contextmanager
def ring(rows: torch.Tensor, _folder: Path) -> Iterator[Stream]:
    """A view of the slot into which a reader has put the batch."""
    loader = shardlab.loader(ArrayDataset(rows), 1, sampler="ring", shuffle=False, worker_start_method="fork")
    yield lambda: iter(loader)
    loader.close()


@contextmanager
def pipe(rows: torch.Tensor, _folder: Path) -> Iterator[Stream]:
    """Pickled bytes through a pipe, as ``multiprocessing.Queue`` sends an array."""
    ours, theirs = FORK.Pipe(duplex=False)
    with sender(send_pickled, theirs, rows.numpy()), ours:
        theirs.close()
        yield lambda: (pickle.loads(ours.recv_bytes()) for _ in rows)


def send_pickled(out: Any, rows: Any) -> None:
    while True:
        for batch in rows:
            out.send_bytes(pickle.dumps(batch))


@contextmanager
def gloo(rows: torch.Tensor, folder: Path) -> Iterator[Stream]:
    """A broadcast into memory of the receiver, as a dispatching loader does for each batch."""
    with sender(broadcast_all, folder / "store", rows):
        group, out = pair(folder / "store", 1), torch.empty_like(rows[0])

        def received(_batch: torch.Tensor) -> torch.Tensor:
            group.broadcast(out, 0).wait()
            return out

        yield lambda: map(received, rows)


def broadcast_all(store: Path, rows: torch.Tensor) -> None:
    group = pair(store, 0)
    while True:
        for batch in rows:
            group.broadcast(batch, 0).wait()


def pair(store: Path, rank: int) -> Any:
    """A process group of two that is nobody's default."""
    return dist.ProcessGroupGloo(dist.FileStore(str(store), 2), rank, 2, timedelta(seconds=60))


@contextmanager
def sender(target: Callable[..., None], *args: Any) -> Iterator[None]:
    """A process that sends until the end of the block."""
    process = FORK.Process(target=_alone, args=(target, *args))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _alone(target: Callable[..., None], *args: Any) -> None:
    die_with_parent()
    target(*args)


def words(batch: Any) -> NDArray[np.uint64]:
    """All bytes of a batch by eight, at which a sum runs at the speed of memory."""
    return np.asarray(batch).reshape(-1).view(np.uint64)


def read_all(stream: Stream) -> int:
    """The sum of all words of all batches, modulo 2^64: it sees a batch that is lost, doubled or torn."""
    total = 0
    for batch in stream():
        total += int(words(batch).sum())
        del batch  # a view of a slot
    return total % (1 << 64)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", [worker, pipe, gloo, ring])
def test_all_batches_arrive(
    benchmark: Any, way: Any, size: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    rows = (SMOKE if benchmark.disabled else SIZES)[size].rows()
    due = int(words(rows).sum())
    benchmark.group = size
    rounds = int(pytestconfig.getoption("benchmark_min_rounds"))
    with way(rows, tmp_path) as stream:
        assert benchmark.pedantic(read_all, (stream,), rounds=rounds, warmup_rounds=1) == due
    if not benchmark.disabled:
        benchmark.extra_info["bytes_per_s"] = round(rows.nbytes / benchmark.stats.stats.median)

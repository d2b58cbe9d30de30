"""The ring as a data path: keyed's order from one reader or several, any samples, streams, resuming."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ranks import each_rank, new_job
from shardlab.datapath import keyed, ring
from shardlab.datapath._ring_source import MapSource
from shardlab.dataset._arrays import ArrayDataset
from shardlab.engine import rank as engine
from shardlab.errors import RunFailed, UsageError
from shardlab.plan import Plan
from shardlab.store import NoCounter, Store
from shardlab.store._share import Attached, attach_memory
from shardlab.store.shared import build
from shardlab.world import World

ALONE = World(0, 1, 0, 1)


@contextmanager
def opened(dataset: Any, batch: int = 4, *, iterable: bool = False, **plan: Any) -> Iterator[Any]:
    samples = None if iterable else len(dataset)
    store = Store(dataset, NoCounter(), iterable=iterable)
    path = ring.open(store, Plan(samples, batch, **plan), ALONE)
    try:
        yield path
    finally:
        path.close()


def copies(path: Any) -> list[Any]:
    """All batches and indices, as Python objects: no view is kept."""
    return [(plain(batch), indices.tolist()) for batch, indices in path]


def plain(batch: Any) -> Any:
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: plain(item) for key, item in batch.items()}
    return [plain(item) for item in batch] if isinstance(batch, list) else batch


class Mixed(Dataset[Any]):
    """Samples of a tensor whose width follows the batch, a text, bytes and a number."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        width = 1 + index // 5
        return {
            "x": torch.full((width,), index), "text": "é" * index, "raw": bytes([index]) * index,
            "y": index / 2, "pair": (np.float32(index), [index]),
        }  # fmt: skip


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("tail", ["pad", "drop", "keep"])
def test_it_has_the_order_of_keyed_however_many_read(workers: int, tail: Any) -> None:
    dataset = ArrayDataset(torch.arange(50))
    other = keyed.open(Store(dataset, NoCounter()), Plan(50, 4, tail=tail), ALONE)
    with opened(dataset, tail=tail, workers=workers) as path:
        for epoch in range(3):
            path.set_epoch(epoch)
            other.set_epoch(epoch)
            assert copies(path) == copies(other)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_samples_of_any_kind_arrive_as_a_stock_loader_collates_them(method: str) -> None:
    plan: Any = {"tail": "keep", "shuffle": False, "worker_start_method": method, "workers": 2}
    due = keyed.open(Store(Mixed(), NoCounter()), Plan(30, 5, tail="keep", shuffle=False), ALONE)
    with opened(Mixed(), 5, **plan) as path:
        assert copies(path) == copies(due)


def test_what_a_reader_is_sent_is_a_handle_of_the_shared_copy_and_not_its_bytes() -> None:
    dataset = Attached(build(lambda: ArrayDataset(torch.rand(2000, 1000))), attach_memory)
    source = MapSource(Store(dataset, NoCounter()), Plan(2000, 4), ALONE)
    assert len(pickle.dumps(source)) < 20_000


def test_a_batch_lies_in_the_ring_and_is_no_copy() -> None:
    with opened(ArrayDataset(torch.rand(64, 100))) as path:
        ring = path.ring.ring
        first, last = ring.buffers[0], ring.buffers[-1]
        for batch, _indices in path:
            assert first.ctypes.data <= batch.data_ptr() < last.ctypes.data + last.nbytes
            del batch, _indices


class Threads(Dataset[Any]):
    """Large enough that torch would use its pool of threads."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 << 18,), float(index)).exp().log()


def test_a_forked_reader_may_use_torch_after_the_rank_has_used_its_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.rand(1 << 22).exp().sum()  # the pool is there now; a forked process has it on paper only
        with opened(Threads(), 4) as path:
            assert len([batch.shape for batch, _ in path]) == 2
    finally:
        torch.set_num_threads(before)


class Noise(Dataset[Any]):
    """As augmentation does."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([random.random(), float(np.random.rand()), float(torch.rand(()))])  # noqa: NPY002


def test_random_numbers_repeat_neither_across_readers_nor_across_epochs() -> None:
    """Other than in pytorch#5059."""
    with opened(Noise(), 1, workers=3) as path:
        seen: list[list[float]] = []
        for epoch in range(3):
            path.set_epoch(epoch)
            seen += [sample for batch, _ in copies(path) for sample in batch]
    for column in range(3):
        assert len({sample[column] for sample in seen}) == 36


# Streams


class Stream(IterableDataset[Any]):
    def __init__(self, n: int, fails_at: int | None = None) -> None:
        self.n, self.fails_at, self.epoch = n, fails_at, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        for number in range(self.n):
            if number == self.fails_at:
                raise ValueError("this sample is rotten")
            yield 100 * self.epoch + number


@pytest.mark.parametrize(
    ("tail", "due"),
    [("keep", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]), ("drop", [[0, 1, 2, 3], [4, 5, 6, 7]]),
     ("pad", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]])],
)  # fmt: skip
def test_a_stream_ends_as_its_tail_says_in_every_epoch(tail: Any, due: list[list[int]]) -> None:
    with opened(Stream(10), iterable=True, tail=tail) as path:
        for epoch in range(3):
            path.set_epoch(epoch)
            found = copies(path)
            assert [indices for _, indices in found] == due
            assert [batch for batch, _ in found] == [[100 * epoch + n for n in part] for part in due]


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
def test_short_streams_end_too(n: int, tail: Any) -> None:
    with opened(Stream(n), iterable=True, tail=tail) as path:
        got = [index for _, indices in copies(path) for index in indices]
        assert set(got) == set(range(n if tail != "drop" else n // 4 * 4))
        assert copies(path) == copies(path)


class Shardable(Stream):
    """Part ``index`` of ``num_shards``: every so many-th number."""

    def __init__(self, n: int, first: int = 0, by: int = 1) -> None:
        super().__init__(n)
        self.first, self.by = first, by

    def shard(self, num_shards: int, index: int) -> Stream:
        return Shardable(self.n, self.first + index * self.by, self.by * num_shards)

    def __iter__(self) -> Any:
        yield from range(self.first, self.n, self.by)


@pytest.mark.parametrize("readers", [2, 3])
@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
@pytest.mark.parametrize("n", [0, 1, 4, 7, 8, 41, 60])
def test_a_stream_that_says_how_it_is_cut_has_several_readers(n: int, tail: Any, readers: int) -> None:
    with opened(Shardable(n), iterable=True, tail=tail, workers=readers) as path:
        found = copies(path)
        numbers = [number for batch, _ in found for number in batch]
        assert numbers == [index for _, indices in found for index in indices]  # each has a number of its own
        parts = [range(first, n, readers) for first in range(readers)]
        whole = {part[place] for part in parts for place in range(len(part) // 4 * 4)}
        assert set(numbers) == (whole if tail == "drop" else set(range(n)))
        assert len(numbers) == len(set(numbers)) or tail == "pad"
        assert all(len(batch) == 4 for batch, _ in found) or tail == "keep"
        assert copies(path) == found


def test_an_endless_stream_can_be_left_and_begun_again() -> None:
    with opened(Stream(1 << 60), iterable=True) as path:
        for _ in range(2):
            batches = iter(path)
            assert [next(batches)[1].tolist() for _ in range(9)] == [
                list(range(4 * step, 4 * step + 4)) for step in range(9)
            ]
            del batches


def test_an_error_of_a_stream_is_named() -> None:
    with (
        opened(Stream(100, fails_at=50), iterable=True) as path,
        pytest.raises(RunFailed, match="reader 0 of the ring failed: ValueError: this sample is rotten"),
    ):
        copies(path)


def test_a_plain_stream_has_one_reader_no_length_and_no_place_to_resume() -> None:
    with (
        pytest.raises(UsageError, match="with one reader, but got 2"),
        opened(Stream(9), iterable=True, workers=2),
    ):
        pass
    with opened(Stream(9), iterable=True) as path:
        with pytest.raises(TypeError):
            len(path)
        with pytest.raises(UsageError, match="place in a stream cannot be saved"):
            path.state_dict()
        with pytest.raises(UsageError, match="place in a stream cannot be saved"):
            path.load_state_dict({"epoch": 0, "consumed": 4})


def test_a_stream_on_several_nodes_is_refused() -> None:
    store = Store(Stream(9), NoCounter(), iterable=True)
    with pytest.raises(UsageError, match="reads an iterable dataset on one node"):
        ring.open(store, Plan(None, 4), World(0, 4, 0, 2))


# Ranks


def stream_of_ranks(world: World, inherited: Any, job: Any, tail: str) -> list[list[int]]:
    with engine.process_group(job, world):
        store = Store(Stream(14), NoCounter(), iterable=True)
        path = ring.open(store, Plan(None, 2, tail=tail), world)  # type: ignore[arg-type]
        found = []
        for _ in range(2):
            found.append([indices.tolist() for _, indices in path])
        path.close()
        return found


def cut_stream_of_ranks(world: World, inherited: Any, job: Any, n: int) -> list[list[int]]:
    with engine.process_group(job, world):
        store = Store(Shardable(n), NoCounter(), iterable=True)
        path = ring.open(store, Plan(None, 2, tail="keep", workers=2, worker_start_method="fork"), world)
        found = [[number for batch, _ in path for number in batch.tolist()] for _ in range(2)]
        path.close()
        return found


@pytest.mark.parametrize("n", [1, 13, 24, 31])
def test_ranks_get_each_sample_of_a_cut_stream_once_in_every_epoch(n: int, tmp_path: Path) -> None:
    job = new_job(tmp_path / "run", dataset="synthetic:n=14:3", nproc=3, sampler="ring")
    for epoch in zip(*each_rank(cut_stream_of_ranks, job, job, n), strict=True):
        assert sorted(number for part in epoch for number in part) == list(range(n))


def test_a_kept_end_of_a_stream_gives_some_ranks_less_and_none_an_old_batch(tmp_path: Path) -> None:
    job = new_job(tmp_path / "run", dataset="synthetic:n=14:3", nproc=3, sampler="ring")
    first, second, third = each_rank(stream_of_ranks, job, job, "keep")
    assert first == [[[0, 1], [6, 7], [12, 13]]] * 2
    assert second == [[[2, 3], [8, 9]]] * 2
    assert third == [[[4, 5], [10, 11]]] * 2


def resumed(
    world: World, inherited: Any, job: Any, sampler: str, state: str, steps: int | None
) -> tuple[list[list[int]], str]:
    """Some steps from a state, and the state then."""
    with engine.process_group(job, world):
        module = {"keyed": keyed, "ring": ring}[sampler]
        path = module.open(
            Store(ArrayDataset(torch.arange(200)), NoCounter()), Plan(200, 3, tail="keep"), world
        )
        path.load_state_dict(json.loads(state))
        found = []
        for batch, _indices in path:
            found.append(batch.tolist())
            del batch, _indices
            if len(found) == steps:
                break
        state = json.dumps(path.state_dict())
        path.close()
        return found, state


@pytest.mark.parametrize("sampler", ["keyed", "ring"])
def test_an_epoch_goes_over_4_then_2_then_3_ranks_in_the_uninterrupted_order(
    sampler: str, tmp_path: Path
) -> None:
    alone = keyed.open(Store(ArrayDataset(torch.arange(200)), NoCounter()), Plan(200, 1, tail="keep"), ALONE)
    alone.set_epoch(2)
    whole = [int(batch) for batch, _ in alone]
    got: list[int] = []
    state = json.dumps({"epoch": 2, "consumed": 0, "seed": 0})
    for number, (ranks, steps) in enumerate(((4, 5), (2, 9), (3, None))):
        job = new_job(tmp_path / str(number), dataset="synthetic:n=200:3", nproc=ranks, sampler=sampler)
        answers = each_rank(resumed, job, job, sampler, state, steps)
        (state,) = {after for _, after in answers}
        for step in range(max(len(found) for found, _ in answers)):
            for found, _ in answers:
                got += found[step] if step < len(found) else []
    assert got == whole
    assert json.loads(state)["consumed"] == 200


def test_a_state_is_of_the_epoch_that_was_chosen_and_not_of_the_one_before() -> None:
    with opened(TensorDataset(torch.arange(40))) as path:
        copies(path)
        assert path.state_dict()["consumed"] == 40
        path.set_epoch(1)
        assert (path.state_dict()["epoch"], path.state_dict()["consumed"]) == (1, 0)
        path.load_state_dict({"epoch": 1, "consumed": 8, "seed": 0})
        assert path.state_dict()["consumed"] == 8
        assert len(copies(path)) == 8


def test_a_dataset_that_a_reader_cannot_be_sent_is_an_error_that_leaves_nothing() -> None:
    import psutil

    before = set(psutil.Process().children())
    dataset = ArrayDataset(torch.arange(9))
    dataset.extra = lambda: None  # type: ignore[attr-defined]
    with pytest.raises((AttributeError, pickle.PicklingError)), opened(dataset, worker_start_method="spawn"):
        pass
    left = set(psutil.Process().children()) - before
    assert not [child for child in left if "resource_tracker" not in " ".join(child.cmdline())]

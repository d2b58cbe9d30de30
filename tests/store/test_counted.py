"""Reads are counted where they happen, by worker, and a sample keeps its index on the way."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from shardlab.datapath._keyed import BatchReader
from shardlab.dataset._arrays import ArrayDataset
from shardlab.errors import RunFailed
from shardlab.store import IndexedCollate, ReadCounter, Store

DATA = torch.arange(40) * 10


class InBatches(ArrayDataset):
    calls: list[list[int]] = []  # noqa: RUF012

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.calls.append(list(indices))
        return [self[index] for index in indices]


class Stream(IterableDataset[Any]):
    epoch = -1

    def __iter__(self) -> Any:
        return iter(range(100, 110))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def summed(items: list[Any]) -> Any:
    return torch.stack(items).sum()


@pytest.fixture
def counter(tmp_path: Path) -> ReadCounter:
    return ReadCounter(tmp_path / "reads")


def test_each_sample_fetched_is_one_read(counter: ReadCounter) -> None:
    dataset = Store(ArrayDataset(DATA), counter).dataset
    assert [int(dataset[n]) for n in (3, 4, 3)] == [30, 40, 30]
    assert counter.total() == 3
    assert counter.by_worker() == [3]


def test_asking_for_the_length_or_the_raw_object_is_no_read(counter: ReadCounter) -> None:
    store = Store(ArrayDataset(DATA), counter)
    assert len(store.dataset) == len(store.indexed) == 40
    assert int(store.raw[7]) == 70
    assert counter.total() == 0


class DropsOne(ArrayDataset):
    """Leaves a sample out that it cannot read."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices if index != 3]


def test_a_dataset_that_leaves_samples_out_of_a_batch_is_refused(counter: ReadCounter) -> None:
    store = Store(DropsOne(DATA), counter)
    with pytest.raises(RunFailed, match="a sample for each index, but gave 3 for 4"):
        store.indexed.__getitems__([1, 2, 3, 4])
    with pytest.raises(RunFailed, match="a sample for each index, but gave 3 for 4"):
        BatchReader(store.raw, list, counter.add).read(np.array([1, 2, 3, 4]))


def test_an_indexed_sample_comes_with_its_index(counter: ReadCounter) -> None:
    store = Store(ArrayDataset(DATA), counter)
    sample, index = store.indexed[5]
    assert (int(sample), index) == (50, 5)
    assert counter.total() == 1


def test_a_batch_arrives_with_its_indices(counter: ReadCounter) -> None:
    store = Store(TensorDataset(DATA, -DATA), counter)
    loader = DataLoader(store.indexed, 4, collate_fn=store.collate_fn, sampler=[7, 3, 9, 1, 0])
    (first, indices), (_, last) = loader
    assert [part.tolist() for part in first] == [[70, 30, 90, 10], [-70, -30, -90, -10]]
    assert indices.tolist() == [7, 3, 9, 1]
    assert indices.dtype == torch.int64
    assert last.tolist() == [0]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_count_their_own_reads_in_one_file(method: str, counter: ReadCounter) -> None:
    store = Store(ArrayDataset(DATA), counter)
    loader = DataLoader(
        store.indexed, 8, num_workers=2, collate_fn=store.collate_fn, multiprocessing_context=method
    )
    seen = torch.cat([indices for _, indices in loader])
    assert seen.tolist() == list(range(40))
    assert counter.by_worker() == [0, 24, 16]  # batches 0, 2, 4 and 1, 3
    assert counter.total() == 40


def test_a_second_counter_on_the_file_goes_on_counting(counter: ReadCounter) -> None:
    counter.add(3)
    again = pickle.loads(pickle.dumps(counter))
    again.add(4)
    assert counter.total() == again.total() == 7


def test_reads_of_workers_that_are_gone_stay(counter: ReadCounter, tmp_path: Path) -> None:
    store = Store(ArrayDataset(DATA), counter)
    list(DataLoader(store.indexed, 8, num_workers=1, collate_fn=store.collate_fn))
    assert ReadCounter(tmp_path / "reads").by_worker() == [0, 40]


def test_a_dataset_that_fetches_whole_batches_still_does(counter: ReadCounter) -> None:
    InBatches.calls.clear()
    store = Store(InBatches(DATA), counter)
    batches = list(DataLoader(store.indexed, 16, collate_fn=store.collate_fn))
    assert InBatches.calls == [list(range(16)), list(range(16, 32)), list(range(32, 40))]
    assert torch.equal(torch.cat([batch for batch, _ in batches]), DATA)
    assert torch.equal(torch.cat([indices for _, indices in batches]), torch.arange(40))
    assert counter.total() == 40


def test_the_plain_view_fetches_whole_batches_too(counter: ReadCounter) -> None:
    InBatches.calls.clear()
    list(DataLoader(Store(InBatches(DATA), counter).dataset, 20))
    assert InBatches.calls == [list(range(20)), list(range(20, 40))]
    assert counter.total() == 40


def test_a_collate_of_the_datasets_own_is_used(counter: ReadCounter) -> None:
    dataset = ArrayDataset(DATA)
    dataset.collate_fn = summed  # type: ignore[attr-defined]
    store = Store(dataset, counter)
    batch, indices = next(iter(DataLoader(store.indexed, 4, collate_fn=store.collate_fn)))
    assert (int(batch), indices.tolist()) == (60, [0, 1, 2, 3])


def test_a_collate_that_is_given_nothing_stacks() -> None:
    batch, indices = IndexedCollate()([(torch.tensor(5), 1), (torch.tensor(6), 0)])
    assert (batch.tolist(), indices.tolist()) == ([5, 6], [1, 0])


def test_a_stream_is_counted_as_it_comes(counter: ReadCounter) -> None:
    store = Store(Stream(), counter, iterable=True)
    taken = [sample for _, sample in zip(range(4), store.dataset, strict=False)]
    assert taken == [100, 101, 102, 103]
    assert counter.total() == 4
    assert list(store.indexed) == [(100 + place, place) for place in range(10)]


def test_a_stream_hears_of_the_epoch(counter: ReadCounter) -> None:
    stream = Stream()
    Store(stream, counter, iterable=True).indexed.set_epoch(3)
    assert stream.epoch == 3


def test_a_stream_without_epochs_is_left_alone(counter: ReadCounter) -> None:
    class Bare(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    Store(Bare(), counter, iterable=True).indexed.set_epoch(3)

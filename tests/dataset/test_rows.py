"""Batches of rows are the samples, whatever asks for them, and in memory of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from shardlab.dataset._arrays import ArrayDataset
from shardlab.dataset._rows import GATHERED_BYTES, Rows, rows_of

LENGTH = 10
WIDE = GATHERED_BYTES + 1
TREES: dict[str, Any] = {
    "tensor": torch.arange(30).reshape(LENGTH, 3),
    "wide": torch.arange(LENGTH * WIDE, dtype=torch.int32).reshape(LENGTH, WIDE),
    "bfloat16": torch.arange(20, dtype=torch.bfloat16).reshape(LENGTH, 2),
    "tuple": (torch.arange(LENGTH), torch.rand(LENGTH, 2, 2)),
    "dict": {"x": torch.arange(LENGTH), "y": torch.rand(LENGTH, 4).half()},
}


@pytest.fixture(params=TREES)
def dataset(request: pytest.FixtureRequest) -> ArrayDataset:
    return ArrayDataset(TREES[request.param])


def rows(dataset: Any) -> Rows:
    found = rows_of(dataset)
    assert found is not None
    return found


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and all(map(equal, one, other))


def test_a_batch_is_what_a_stock_loader_collates(dataset: ArrayDataset) -> None:
    wanted = [7, 0, 7, 9]
    assert equal(rows(dataset).batch(np.array(wanted)), default_collate([dataset[n] for n in wanted]))


def test_samples_are_those_of_the_dataset(dataset: ArrayDataset) -> None:
    wanted = [7, 0, 7, 9]
    assert equal(rows(dataset).samples(wanted), [dataset[n] for n in wanted])


def test_a_batch_outlives_what_it_was_made_with_and_is_no_view_of_the_dataset() -> None:
    data = torch.arange(40).reshape(LENGTH, 4)
    batch = rows(ArrayDataset(data)).batch(np.array([1, 2]))
    batch += 1000
    assert data.max() == 39


def test_no_samples_are_an_empty_batch(dataset: ArrayDataset) -> None:
    batch = rows(dataset).batch(np.array([], np.int64))
    first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
    assert len(first) == 0
    assert rows(dataset).samples([]) == []


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_indices_of_any_whole_type_will_do(dtype: Any) -> None:
    assert rows(ArrayDataset(torch.arange(LENGTH))).batch(np.array([5, 7, 1], dtype)).tolist() == [5, 7, 1]


@pytest.mark.parametrize(
    "wrong", [[-1], [LENGTH], [0, 1 << 40], [True] * LENGTH, [0.0, 1.0], [[1, 2]]], ids=repr
)
def test_what_names_no_sample_is_refused(wrong: Any, dataset: ArrayDataset) -> None:
    with pytest.raises(IndexError):
        rows(dataset).batch(np.array(wrong))


@pytest.mark.parametrize("index", [-1, LENGTH])
def test_no_sample_outside_the_dataset(index: int, dataset: ArrayDataset) -> None:
    with pytest.raises(IndexError):
        rows(dataset).samples([index])


def test_torchs_own_dataset_of_tensors_has_rows_too() -> None:
    dataset = TensorDataset(torch.arange(LENGTH), torch.rand(LENGTH, 3))
    assert equal(rows(dataset).samples([3, 4]), [dataset[3], dataset[4]])

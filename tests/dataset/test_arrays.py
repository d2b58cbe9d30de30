"""Datasets in memory serve the samples that went in."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.dataset._arrays import ArrayDataset, SerializedList, serialize
from shardlab.errors import UsageError

x = torch.arange(12.0).reshape(4, 3)
y = torch.arange(4)


def test_samples_have_the_structure_of_the_tree() -> None:
    assert torch.equal(ArrayDataset(x)[2], x[2])
    first, second = ArrayDataset((x, y))[3]
    assert torch.equal(first, x[3])
    assert second == 3
    assert list(ArrayDataset({"a": x, "b": y})[0]) == ["a", "b"]


def test_samples_are_views() -> None:
    data = torch.zeros(2, 3)
    ArrayDataset(data)[1][0] = 5
    assert data[1, 0] == 5


def test_length_and_bytes_are_those_of_the_arrays() -> None:
    dataset = ArrayDataset((x, y))
    assert len(dataset) == 4
    assert dataset.nbytes == 12 * 4 + 4 * 8


@pytest.mark.parametrize("index", [-1, 4, 100])
def test_indices_outside_are_refused(index: int) -> None:
    with pytest.raises(IndexError):
        ArrayDataset(x)[index]


def test_iteration_ends_with_the_last_sample() -> None:
    assert len(list(ArrayDataset(x))) == 4


def test_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(UsageError, match="one leading length"):
        ArrayDataset((x, y[:2]))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(-5, 5), inner, max_size=3)
    ),
    max_leaves=8,
)


def alike(a: Any, b: Any) -> bool:
    """Equal, of equal types all the way down; a NaN is like a NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[key], b[key]) for key in a)
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, max_size=5))
def test_objects_come_back_as_they_went_in(items: list[Any]) -> None:
    dataset = SerializedList(*serialize(items))
    assert len(dataset) == len(items)
    assert all(map(alike, dataset, items))


def test_an_encoded_list_knows_its_bytes_and_its_ends() -> None:
    buffer, ends = serialize(["a" * 10, "", "b" * 1000])
    assert (buffer.dtype, ends.dtype) == (np.uint8, np.int64)
    assert ends[-1] == len(buffer)
    assert SerializedList(buffer, ends).nbytes == len(buffer) + 24
    for index in (-1, 3):
        with pytest.raises(IndexError):
            SerializedList(buffer, ends)[index]


def test_an_encoded_list_goes_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(SerializedList(*serialize([(1, "a"), (2, "b")]))))
    assert list(copy) == [(1, "a"), (2, "b")]


@dataclass
class Own:
    value: int = 0


@pytest.mark.parametrize(
    ("item", "named"),
    [
        ({1, 2}, "builtins.set"),
        (Own(), r"test_arrays\.Own"),
        ([{"deep": np.float64(1)}], r"numpy\.float64"),
        (torch.zeros(2), r"torch\.Tensor"),
        (2**64, "an int beyond 64 bits"),
        ({(1, 2): (3,)}, "builtins.dict"),
    ],
)
def test_what_bytes_cannot_carry_is_named_with_its_sample(item: Any, named: str) -> None:
    with pytest.raises(UsageError, match=f"{named} in sample 2"):
        serialize(["fine", "fine", item])

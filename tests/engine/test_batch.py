"""Every byte of a batch is read and counted, whatever it is made of, and the work after it takes any shape."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlab.engine.batch import computation, read_every_byte, tensors, to_device

CPU = torch.device("cpu")
DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.bool, torch.complex64, torch.uint16,
]  # fmt: skip

Pair = collections.namedtuple("Pair", "image label")


@given(size=st.integers(1, 70), place=st.integers(0, 69), dtype=st.sampled_from(DTYPES))
def test_no_byte_can_change_unseen(size: int, place: int, dtype: torch.dtype) -> None:
    raw = torch.zeros(size * dtype.itemsize, dtype=torch.uint8)
    changed = raw.clone()
    changed[place % len(raw)] = 1
    assert read_every_byte(raw.view(dtype)) != read_every_byte(changed.view(dtype))


@pytest.mark.parametrize("take", [np.s_[::2], np.s_[1:], np.s_[:, 3:], np.s_[:, ::5]])
def test_views_are_read_and_what_lies_between_is_not(take: Any) -> None:
    data = torch.zeros(10, 17, dtype=torch.uint8)
    view = data[take]
    before = read_every_byte(view)
    outside = torch.ones_like(data, dtype=torch.bool)
    outside[take] = False
    data[outside] = 7
    assert read_every_byte(view) == before
    view[-1, -1] = 7
    assert read_every_byte(view) != before


@pytest.mark.parametrize(
    ("batch", "nbytes"),
    [
        (torch.zeros(4, 3, dtype=torch.float32), 48),
        (torch.tensor(5), 8),
        (torch.empty(0, 3), 0),
        ([torch.zeros(4), (torch.zeros(2, dtype=torch.uint8), {"x": torch.zeros(1)})], 16 + 2 + 4),
        ({"a": np.zeros(3), "b": ["text", None, 4.5, b"bytes"]}, 24),
        (Pair(torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64)), 64 + 16),
        (np.array(["ab", "c"]), 16),
        (np.arange(4, dtype=">i4"), 16),
        (np.arange(4)[::-1], 32),
        (np.array("2020-01-01", dtype="M8[D]"), 8),
        (np.array([None, 3], dtype=object), 0),
        (torch.zeros(8).expand(3, 8), 96),
        ((), 0),
        (None, 0),
    ],
    ids=repr,
)  # fmt: skip
def test_the_bytes_of_a_batch_are_those_of_its_arrays(batch: Any, nbytes: int) -> None:
    assert read_every_byte(batch)[0] == nbytes


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_a_column_is_read(dtype: torch.dtype) -> None:
    column = torch.zeros(5, 3, dtype=dtype)[:, 1]
    nbytes, before = read_every_byte(column)
    assert nbytes == 5 * dtype.itemsize
    column[4] = 1
    assert read_every_byte(column)[1] != before


def test_an_array_is_read_where_it_lies() -> None:
    array = np.zeros(100)
    (tensor,) = tensors(array)
    assert tensor.data_ptr() == array.ctypes.data


def test_an_array_that_torch_has_no_type_for_is_read_to_its_end() -> None:
    array = np.array(["abc", "abc"])
    before = read_every_byte(array)
    array[1] = "abd"
    assert read_every_byte(array) != before


def test_a_tensor_that_needs_a_gradient_is_read() -> None:
    assert read_every_byte(torch.ones(4, requires_grad=True))[1] != 0


def test_nothing_is_copied_to_where_it_is_already() -> None:
    batch = {"x": torch.zeros(3), "more": [torch.ones(2), "text"]}
    moved = to_device(batch, CPU)
    assert moved["x"] is batch["x"]
    assert moved["more"][0] is batch["more"][0]
    assert moved["more"][1] == "text"


def test_all_tensors_of_a_batch_move() -> None:
    moved = to_device(({"x": torch.zeros(3)}, [torch.ones(2)], 4), torch.device("meta"))
    assert {tensor.device.type for tensor in tensors(moved)} == {"meta"}
    assert moved[2] == 4


def test_no_work_is_no_function() -> None:
    assert computation("none", CPU) is None
    assert computation("0ms", CPU) is None


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(4, 784, dtype=torch.uint8),
        torch.rand(4, 3, 64, 64),
        torch.zeros(1, 1, 28, 28, dtype=torch.int16),
        (torch.rand(4, 10), torch.zeros(4)),
        {"ids": torch.arange(12).reshape(4, 3)},
        torch.arange(4),
        np.zeros((4, 5)),
        torch.empty(0, 784),  # a dispatched rank may get nothing
        ["text"],
        None,
    ],
    ids=lambda batch: getattr(batch, "shape", type(batch)),
)  # fmt: skip
def test_the_small_network_takes_any_batch(batch: Any) -> None:
    compute = computation("cnn", CPU)
    assert compute is not None
    compute(batch)


def test_the_small_network_learns_and_does_so_alike_each_time() -> None:
    def trained() -> list[torch.Tensor]:
        compute: Any = computation("cnn", CPU)
        before = [p.clone() for p in compute.model.parameters()]
        for _ in range(3):
            compute(torch.ones(4, 784))
        after = [p.detach() for p in compute.model.parameters()]
        assert any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))
        return after

    assert all(torch.equal(x, y) for x, y in zip(trained(), trained(), strict=True))


def test_an_empty_batch_does_not_spoil_the_network() -> None:
    compute: Any = computation("cnn", CPU)
    compute(torch.empty(0, 784))
    assert all(torch.isfinite(p).all() for p in compute.model.parameters())

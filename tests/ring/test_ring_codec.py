"""A batch comes out of a slot as it went in, or does not go in."""

from __future__ import annotations

import enum
import gc
import weakref
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.errors import RunFailed
from shardlab.ring.codec import decode, encode

ROOM = 1 << 16
TORCH_DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.bool, torch.complex64,
]  # fmt: skip
NUMPY_DTYPES = ["<i2", ">i4", "<f8", "|b1", "<U5", "|S3", "<M8[ns]", "<c8"]


def through(batch: Any, room: int = ROOM) -> Any:
    """Two batches in one part, so that something is left of the first under the second."""
    part = np.zeros(room, np.uint8)
    part[:] = 0xA5
    encode(batch, part)
    return decode(part)


def assert_same(got: Any, put: Any) -> None:
    assert type(got) is type(put)
    if isinstance(put, torch.Tensor):
        assert (got.dtype, got.shape) == (put.dtype, put.shape)
        assert (
            got.numpy(force=True).tobytes() == put.numpy(force=True).tobytes()
            if got.dtype != torch.bfloat16
            else torch.equal(got, put)
        )
    elif isinstance(put, np.ndarray):
        assert (got.dtype, got.shape) == (put.dtype, put.shape)
        assert got.tobytes() == put.tobytes()
    elif isinstance(put, dict):
        assert list(got) == list(put)
        for key in put:
            assert_same(got[key], put[key])
    elif isinstance(put, (list, tuple)):
        assert len(got) == len(put)
        for one, other in zip(got, put, strict=True):
            assert_same(one, other)
    else:
        assert got == put


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, count, dtype=np.uint8)
    tensor = (
        torch.frombuffer(raw.data, dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    )
    return tensor.transpose(0, -1) if shape and draw(st.booleans()) else tensor


@st.composite
def arrays(draw: Any) -> np.ndarray[Any, Any]:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = np.dtype(draw(st.sampled_from(NUMPY_DTYPES)))
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(
        0, 2, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8
    )
    return raw.view(dtype).reshape(shape)


plain = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.binary()
plain |= st.floats(allow_nan=False)
nested = st.recursive(
    tensors() | arrays() | plain,
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(nested)
def test_any_nested_batch_comes_out_as_it_went_in(batch: Any) -> None:
    assert_same(through(batch), batch)


def test_every_array_of_a_batch_begins_at_a_cache_line_of_its_own() -> None:
    got = through([torch.ones(n, dtype=torch.uint8) for n in (1, 63, 64, 65)])
    addresses = [tensor.data_ptr() for tensor in got]
    assert {(address - addresses[0]) % 64 for address in addresses} == {0}


Pair = namedtuple("Pair", "x y")


class Colour(enum.IntEnum):
    RED = 1


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    "batch",
    [
        Pair(1, 2), {1, 2}, Point(1), Colour.RED, object(), np.float64(1), {Pair(1, 2): 3}, [[(Point(2),)]],
        np.array([object()]), np.zeros(2, [("a", "i4")]), torch.eye(3).to_sparse(),
    ],
    ids=lambda batch: type(batch).__name__,
)  # fmt: skip
def test_what_would_come_out_as_something_else_is_refused_with_its_type_and_a_cure(batch: Any) -> None:
    with pytest.raises(TypeError, match=r"a batch in the ring (is made of|has) .*, but got .*Cure:"):
        through(batch)


def test_a_batch_that_is_too_large_is_refused_with_both_figures() -> None:
    with pytest.raises(RunFailed, match=r"a batch of 4,\d\d\d bytes does not fit into a slot of 4,096 bytes"):
        through(torch.zeros(1016), room=4096)


def test_a_batch_may_be_exactly_as_large_as_its_slot() -> None:
    assert through(torch.zeros(1008), room=4096).shape == (1008,)
    with pytest.raises(RunFailed):
        through(torch.zeros(1020), room=4096)


@pytest.mark.parametrize("lazy", [lambda t: t.conj(), lambda t: torch.conj(t).imag])
def test_a_tensor_that_is_conjugated_or_negated_lazily_has_its_values(lazy: Any) -> None:
    put = lazy(torch.tensor([1 + 2j, 3 - 1j]))
    assert torch.equal(through(put), put)


def test_a_part_lives_as_long_as_any_view_of_it() -> None:
    memory = np.zeros(ROOM, np.uint8)
    encode({"a": torch.arange(9), "b": np.arange(3), "c": "text", "d": torch.ones(2, dtype=torch.bfloat16)}, memory)
    for name in "abd":
        part = memory[:]
        alive = weakref.ref(part)
        batch = decode(part)
        kept = batch[name][1:]
        del batch, part
        assert alive() is not None
        assert kept.tolist() == {"a": list(range(1, 9)), "b": [1, 2], "d": [1]}[name]
        del kept
        assert alive() is None


def test_a_batch_without_arrays_keeps_no_part() -> None:
    memory = np.zeros(ROOM, np.uint8)
    encode(["text", 1, torch.empty(0)], memory)
    part = memory[:]
    alive = weakref.ref(part)
    batch = decode(part)
    del part
    assert alive() is None
    assert batch[:2] == ["text", 1]


def test_neither_end_leaves_garbage_that_would_keep_a_batch_alive() -> None:
    part = np.zeros(ROOM, np.uint8)
    gc.collect()
    gc.disable()
    try:
        put = {"a": torch.arange(9), "b": [np.arange(3), ("text", 1)]}
        alive = [weakref.ref(put["a"])]
        encode(put, part)
        view = part[:]
        alive.append(weakref.ref(view))
        got = decode(view)
        del put, got, view
        assert [reference() for reference in alive] == [None] * 2
    finally:
        gc.enable()

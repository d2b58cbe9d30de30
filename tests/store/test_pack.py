"""Whatever a dataset holds comes back as it was, its arrays being views of one buffer."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset
from torchvision.tv_tensors import Image

from shardlab.dataset._arrays import ArrayDataset, ListDataset, SerializedList
from shardlab.errors import UsageError
from shardlab.store._pack import ALIGN, Packed, pack, unpack

LARGE = (40, 50)  # more than goes with the skeleton, in any dtype
TORCH_DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


class Plain:
    """A dataset with whatever attributes a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def double(sample: Any) -> Any:
    return sample * 2


class Transformed:
    def __init__(self, data: torch.Tensor, transform: Any) -> None:
        self.data, self.transform = data, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.data[index])


def packed(dataset: Any) -> tuple[Packed, np.ndarray[Any, Any]]:
    buffers: list[np.ndarray[Any, Any]] = []

    def allocate(nbytes: int) -> np.ndarray[Any, Any]:
        buffers.append(np.full(nbytes, 0xAA, np.uint8))
        return buffers[0]

    result = pack(dataset, allocate)
    assert len(buffers) == 1  # asked for once
    return result, buffers[0]


def round_trip(dataset: Any) -> Any:
    return unpack(*packed(dataset))


def lies_in(array: Any, buffer: np.ndarray[Any, Any]) -> bool:
    array = array.view(torch.uint8).numpy() if isinstance(array, torch.Tensor) else array
    return bool(np.shares_memory(array, buffer))


def random_bytes(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, count, np.uint8)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_a_tensor_of_any_dtype_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    raw = random_bytes(2000 * dtype.itemsize)
    tensor = torch.from_numpy(raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(LARGE)
    result, buffer = packed(Plain(data=tensor))
    back = unpack(result, buffer).data
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    assert lies_in(back, buffer)


@pytest.mark.parametrize("dtype", ["<u1", "<i2", ">i4", "<f2", "<f8", "<c16", "?", "<U5", "S7", "<M8[s]"])
def test_an_array_of_any_plain_dtype_comes_back(dtype: str) -> None:
    array = np.arange(2000).astype(dtype).reshape(LARGE)
    result, buffer = packed(Plain(data=array))
    back = unpack(result, buffer).data
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)
    assert lies_in(back, buffer)


def test_a_record_array_keeps_its_fields() -> None:
    array = np.zeros(500, [("box", "<f4", 4), ("label", "<i8")])
    array["label"] = np.arange(500)
    back = round_trip(Plain(data=array)).data
    assert back.dtype == array.dtype
    assert np.array_equal(back["label"], array["label"])


def test_a_masked_array_keeps_its_mask() -> None:
    array = np.ma.masked_less(np.arange(2000), 1000)
    back = round_trip(Plain(data=array)).data
    assert back.sum() == array.sum() == sum(range(1000, 2000))


def test_a_tensor_of_a_class_of_its_own_keeps_it() -> None:
    image = Image(torch.rand(3, 28, 28))
    back = round_trip(Plain(data=image)).data
    assert type(back) is Image
    assert torch.equal(back, image)


def test_a_mapped_file_is_read_into_the_buffer(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.arange(2000))
    result, buffer = packed(Plain(data=np.load(tmp_path / "data.npy", mmap_mode="r")))
    assert np.array_equal(unpack(result, buffer).data, np.arange(2000))
    assert lies_in(unpack(result, buffer).data, buffer)


@pytest.mark.parametrize(
    "small",
    [
        torch.tensor(7), torch.empty(0), torch.empty(3, 0, 5), torch.arange(5), np.array(3.5), np.float32(2),
        np.empty((0, 4)), np.arange(3), np.array([None, "x"], dtype=object),
    ],
    ids=repr,
)  # fmt: skip
def test_small_empty_and_0d_arrays_and_arrays_of_objects_come_back(small: Any) -> None:
    back = round_trip(Plain(data=small, large=torch.zeros(LARGE))).data
    assert type(back) is type(small)
    assert back.dtype == small.dtype
    assert back.shape == small.shape
    assert back.tolist() == small.tolist()


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(8000).reshape(80, 100)[::2, ::3],
        torch.arange(8000).reshape(80, 100).T,
        torch.arange(80).expand(50, 80),
        torch.arange(4000.0).reshape(4, 10, 10, 10).contiguous(memory_format=torch.channels_last),
        torch.arange(4000)[1000:],
        torch.arange(4000.0, requires_grad=True),
    ],
    ids=["strided", "transposed", "expanded", "channels_last", "offset", "with_grad"],
)
def test_a_tensor_of_any_memory_layout_comes_back_with_its_values(view: torch.Tensor) -> None:
    result, buffer = packed(Plain(data=view))
    assert torch.equal(unpack(result, buffer).data, view.detach())
    assert result.nbytes == view.numel() * view.element_size()


@pytest.mark.parametrize("view", [np.arange(8000).reshape(80, 100)[::-2, ::3], np.asfortranarray(np.eye(50))])
def test_an_array_of_any_memory_layout_comes_back_with_its_values(view: np.ndarray[Any, Any]) -> None:
    assert np.array_equal(round_trip(Plain(data=view)).data, view)


def test_structures_come_back_with_their_types() -> None:
    a, b = torch.arange(2000), torch.arange(2000.0)
    named = collections.namedtuple("named", "x y")
    globals()["named"] = named
    named.__qualname__ = "named"
    holder = Plain(
        tuple=(a, b), list=[a, {"deep": (b,)}], dict={"x": a, 3: b}, ordered=named(a, b), none=None
    )
    back = round_trip(holder)
    assert isinstance(back.tuple, tuple)
    assert torch.equal(back.tuple[1], b)
    assert torch.equal(back.list[1]["deep"][0], b)
    assert list(back.dict) == ["x", 3]
    assert back.ordered._fields == ("x", "y")
    assert back.none is None


def test_an_object_that_is_held_twice_stays_one_and_is_stored_once() -> None:
    data = torch.arange(2000)
    result, buffer = packed(Plain(a=data, b=[data], c={"again": data}))
    back = unpack(result, buffer)
    assert back.a is back.b[0] is back.c["again"]
    assert result.nbytes == data.nbytes


def test_arrays_do_not_overlap_and_start_at_cache_lines() -> None:
    arrays = [torch.full((1025 + 13 * n,), n, dtype=torch.uint8) for n in range(20)]
    result, buffer = packed(Plain(arrays=arrays))
    ends = 0
    for leaf in result.leaves:
        assert leaf.offset % ALIGN == 0
        assert leaf.offset >= ends
        ends = leaf.offset + leaf.nbytes
    assert ends <= result.nbytes == len(buffer)
    assert all(torch.equal(x, y) for x, y in zip(unpack(result, buffer).arrays, arrays, strict=True))


def test_a_dataset_with_a_function_for_its_transform_works_as_before() -> None:
    dataset = Transformed(torch.arange(6000).reshape(3, 2000), double)
    back = round_trip(dataset)
    assert len(back) == 3
    assert torch.equal(back[2], dataset[2])


def test_datasets_of_torch_and_of_this_package_come_back() -> None:
    x, y = torch.randn(100, 20), torch.arange(100)
    for dataset in (TensorDataset(x, y), ArrayDataset((x, y))):
        back = round_trip(dataset)
        assert type(back) is type(dataset)
        assert torch.equal(back[7][0], x[7])
        assert back[7][1] == 7


@pytest.mark.parametrize(
    "dataset",
    [
        Plain(data=torch.arange(2000), transform=lambda sample: sample),
        Plain(file=open(__file__)),  # noqa: SIM115
        Plain(generator=(n for n in range(3))),
    ],
    ids=["lambda", "open_file", "generator"],
)
def test_what_cannot_be_sent_to_another_process_is_refused_with_the_cure(dataset: Any) -> None:
    with pytest.raises(UsageError, match=r"one that can be sent to another process.*use --store private"):
        packed(dataset)


def test_a_class_inside_a_function_is_refused() -> None:
    class Inner(Plain):
        pass

    with pytest.raises(UsageError, match="at module level"):
        packed(Inner(data=torch.arange(2000)))


# Python objects


RECORDS = [{"id": n, "name": f"{n:012d}.jpg", "box": [n / 4, 0.5], "pair": (n, None)} for n in range(20_000)]


def test_a_dataset_of_many_objects_becomes_bytes_of_its_samples() -> None:
    result, buffer = packed(ListDataset(RECORDS))
    back = unpack(result, buffer)
    assert isinstance(back, SerializedList)
    assert len(back) == len(RECORDS)
    assert [back[n] for n in (0, 1, 9_999, 19_999)] == [RECORDS[n] for n in (0, 1, 9_999, 19_999)]
    assert type(back[3]["pair"]) is tuple
    assert len(result.skeleton) < 10_000
    assert lies_in(back.buffer, buffer)


def test_few_objects_go_along_as_they_are() -> None:
    assert round_trip(ListDataset(RECORDS[:10])).items == RECORDS[:10]


def test_objects_that_are_little_beside_the_arrays_go_along_as_they_are() -> None:
    result, buffer = packed(Plain(data=torch.zeros(40 << 20, dtype=torch.uint8), notes=["x" * 100] * 15_000))
    assert len(unpack(result, buffer).notes) == 15_000


def test_objects_of_a_kind_that_bytes_cannot_say_are_refused_by_type_and_sample() -> None:
    samples = [*RECORDS, {1, 2}]
    with pytest.raises(UsageError, match=r"set in sample 20000.*use --store private"):
        packed(ListDataset(samples))


@given(st.lists(st.integers(0, 3000), max_size=6))
def test_any_mix_of_sizes_comes_back(sizes: list[int]) -> None:
    arrays = [torch.from_numpy(random_bytes(size)) for size in sizes]
    back = round_trip(Plain(arrays=arrays)).arrays
    assert all(torch.equal(x, y) for x, y in zip(back, arrays, strict=True))

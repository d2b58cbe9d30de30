"""A dataset as one flat buffer of bytes that many processes can map.

Every tensor and array of a dataset object goes into the buffer; what remains is a small skeleton (its class,
its transform, its settings), pickled. The skeleton is handed between ranks of one run in memory, as
multiprocessing hands a dataset to its workers; it never comes from a disk. A dataset that is mostly Python
objects has no arrays to share, so its samples are encoded one by one into a buffer (see ``SerializedList``).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardlab.dataset._arrays import SerializedList, serialize
from shardlab.errors import UsageError

ALIGN = 64  # bytes: a cache line, and more than any dtype asks for
LEAST_BYTES = 1024  # smaller arrays travel with the skeleton
SKELETON_LIMIT = 1 << 20  # a larger skeleton means that the data are Python objects

Allocate = Callable[[int], NDArray[np.uint8]]


@dataclass(frozen=True)
class Leaf:
    """One array in the buffer. ``tensor`` says whether it comes back as a torch tensor."""

    offset: int
    nbytes: int
    dtype: str | np.dtype[Any]
    shape: tuple[int, ...]
    tensor: bool


@dataclass(frozen=True)
class Packed:
    """What is needed beside the buffer to make the dataset again."""

    leaves: tuple[Leaf, ...]
    skeleton: bytes
    nbytes: int


def pack(dataset: Any, allocate: Allocate) -> Packed:
    """Write the dataset's arrays into one buffer from ``allocate(nbytes)``.

    Raises UsageError for a dataset that cannot be handed to another process at all.
    """
    skeleton, arrays = _take_apart(dataset)
    array_bytes = sum(array.nbytes for array in arrays)
    if len(skeleton) > max(SKELETON_LIMIT, array_bytes // 20):
        skeleton, arrays = _take_apart(SerializedList(*serialize(dataset[i] for i in range(len(dataset)))))
    leaves = _lay_out(arrays)
    nbytes = leaves[-1].offset + leaves[-1].nbytes if leaves else 0
    buffer = allocate(nbytes)
    for leaf, array in zip(leaves, arrays, strict=True):
        # reshape(-1) first: a 0-d array has no axis to view as bytes
        target = buffer[leaf.offset : leaf.offset + leaf.nbytes]
        target[:] = _as_numpy(array).reshape(-1).view(np.uint8)
    return Packed(tuple(leaves), skeleton, nbytes)


def unpack(packed: Packed, buffer: NDArray[np.uint8]) -> Any:
    """The dataset again, its arrays being views of ``buffer``."""
    return _Unpickler(io.BytesIO(packed.skeleton), [_view(leaf, buffer) for leaf in packed.leaves]).load()


def _take_apart(dataset: Any) -> tuple[bytes, list[Any]]:
    out = io.BytesIO()
    pickler = _Pickler(out)
    try:
        pickler.dump(dataset)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            "a dataset that ranks share must be one that can be sent to another process",
            str(error),
            cure="define its transform and class at module level (no lambda), or use --store private",
        ) from None
    return out.getvalue(), pickler.arrays


class _Pickler(pickle.Pickler):
    """Puts arrays aside, each once, and leaves its number in their place."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, protocol=5)
        self.arrays: list[Any] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not _is_large_array(obj):
            return None
        if id(obj) not in self._numbers:  # the same object stays one object
            self._numbers[id(obj)] = len(self.arrays)
            self.arrays.append(obj)
        return self._numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, arrays: Sequence[Any]) -> None:
        super().__init__(source)
        self._arrays = arrays

    def persistent_load(self, pid: Any) -> Any:
        return self._arrays[pid]


def _is_large_array(obj: Any) -> bool:
    # Exact types: a masked array or a tensor subclass is more than its bytes.
    if type(obj) is torch.Tensor:
        return obj.nbytes >= LEAST_BYTES and obj.layout == torch.strided and obj.device.type == "cpu"
    return type(obj) in (np.ndarray, np.memmap) and obj.nbytes >= LEAST_BYTES and not obj.dtype.hasobject


def _lay_out(arrays: Sequence[Any]) -> list[Leaf]:
    leaves, offset = [], 0
    for array in arrays:
        tensor = isinstance(array, torch.Tensor)
        dtype = str(array.dtype).removeprefix("torch.") if tensor else array.dtype
        leaves.append(Leaf(offset, array.nbytes, dtype, tuple(array.shape), tensor))
        offset += -(-array.nbytes // ALIGN) * ALIGN
    return leaves


def _as_numpy(array: Any) -> NDArray[Any]:
    if isinstance(array, torch.Tensor):
        return array.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(array)


def _view(leaf: Leaf, buffer: NDArray[np.uint8]) -> Any:
    raw = buffer[leaf.offset : leaf.offset + leaf.nbytes]
    if leaf.tensor:
        return torch.from_numpy(raw).view(getattr(torch, str(leaf.dtype))).reshape(leaf.shape)
    return raw.view(leaf.dtype).reshape(leaf.shape)

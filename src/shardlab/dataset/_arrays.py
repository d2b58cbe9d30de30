"""Datasets in memory: tensors of one leading length, a list of objects, such a list encoded as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from shardlab.errors import UsageError

ArrayTree = torch.Tensor | tuple[torch.Tensor, ...] | dict[str, torch.Tensor]

_TUPLE = 1  # code of the one msgpack extension used here


class ArrayDataset(Dataset[Any]):
    """Samples that are rows: ``tree`` is a tensor, or a tuple or dict of tensors, all of one leading length.

    ::

        ArrayDataset(x)[i] = x[i]      ArrayDataset((x, y))[i] = (x[i], y[i])      {"x": x} the same by key

    Samples are views. The tensors may lie in memory that is mapped. Indices outside [0, len) raise
    IndexError.
    """

    def __init__(self, tree: ArrayTree) -> None:
        self.tree = tree
        lengths = {len(leaf) for leaf in self.leaves}
        if len(lengths) != 1:
            raise UsageError("the arrays of a dataset must have one leading length", sorted(lengths))
        self._length = lengths.pop()

    @property
    def leaves(self) -> tuple[torch.Tensor, ...]:
        """The tensors, in order."""
        tree = self.tree
        if isinstance(tree, torch.Tensor):
            return (tree,)
        return tuple(tree.values()) if isinstance(tree, dict) else tree

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return row_of(self.tree, index)


def row_of(tree: ArrayTree, index: int) -> Any:
    """Row ``index`` of each tensor, in the tree's own structure."""
    if isinstance(tree, torch.Tensor):
        return tree[index]
    if isinstance(tree, dict):
        return {name: leaf[index] for name, leaf in tree.items()}
    return tuple(leaf[index] for leaf in tree)


class ListDataset(Dataset[Any]):
    """A sequence as it is: the samples are its own objects."""

    def __init__(self, items: Sequence[Any] | NDArray[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class SerializedList(Dataset[Any]):
    """A list of Python objects in one uint8 buffer and int64 ends; reading a sample decodes it.

    ::

        buffer  |--- sample 0 ---|- sample 1 -|------- sample 2 -------|
        ends                     16           28                       54

    Reading touches no reference count of another process, which is what unshares a list of objects page by
    page.

    Source of the idea: ``DatasetFromList`` of detectron2 and ppwwyyxx/RAM-multiprocess-dataloader, with
    msgpack in the place of pickle.
    """

    def __init__(self, buffer: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self.buffer = buffer
        self.ends = ends

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer and the ends."""
        return self.buffer.nbytes + self.ends.nbytes

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self.ends):
            raise IndexError(index)
        start = self.ends[index - 1] if index else 0
        return _decoder.decode(self.buffer[start : self.ends[index]].data)


def serialize(items: Iterable[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """``(buffer, ends)`` for :class:`SerializedList`; uint8 of shape (bytes,), int64 of shape (samples,).

    Carries None, bool, int of 64 bits, float, str, bytes, list, tuple and dict. Raises UsageError that names
    the type and the sample for any other object.
    """
    buffer, ends = bytearray(), []
    for index, item in enumerate(items):
        buffer += _encoded(item, index)
        ends.append(len(buffer))
    return np.frombuffer(buffer, np.uint8), np.array(ends, np.int64)


def _encoded(item: Any, index: int) -> bytes:
    """Encode as it is where that comes back equal, which is quick to see; else find what is special."""
    try:
        data = _encoder.encode(item)
        if _decoder.decode(data) == item:
            return data
    except (TypeError, ValueError, OverflowError):
        pass  # a type or number that msgpack does not know; the walk names it
    return _encoder.encode(_portable(item, index))


def _portable(item: Any, index: int) -> Any:
    """The item with each tuple wrapped, since msgpack itself gives lists back. Raises UsageError."""
    kind = type(item)
    if kind is tuple:
        return msgspec.msgpack.Ext(_TUPLE, _encoder.encode([_portable(part, index) for part in item]))
    if kind is list:
        return [_portable(part, index) for part in item]
    if kind is dict and all(type(key) in (str, int, float, bool, bytes, type(None)) for key in item):
        return {key: _portable(part, index) for key, part in item.items()}
    if kind in (str, bytes, float, bool, type(None)) or (kind is int and -(1 << 63) <= item < 1 << 64):
        return item
    named = "an int beyond 64 bits" if kind is int else f"{kind.__module__}.{kind.__qualname__}"
    raise UsageError(
        "samples that processes share as bytes must be made of None, bool, int, float, str, bytes, list, "
        "tuple and dict with plain keys",
        f"{named} in sample {index}",
        cure="turn it into one of these, or use --store private",
    )


def _from_ext(code: int, data: memoryview) -> Any:
    if code != _TUPLE:
        raise ValueError(f"unknown msgpack extension {code}")
    return tuple(cast(list[Any], _decoder.decode(data)))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ext_hook=_from_ext)

"""What a dataset object holds: every object that can be reached from it, arrays by address."""

from __future__ import annotations

import array
import gc
import logging
import mmap
import os
import sys
import types
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

Span = tuple[int, int]
"""Addresses [start, stop)."""

# A step into one of these leaves the dataset: a function knows its module, a logger all loggers.
_OUTSIDE = (
    types.ModuleType, type, types.FrameType, types.CodeType, types.BuiltinFunctionType, logging.Logger,
    logging.Handler,
)  # fmt: skip
_PLAIN = frozenset({int, float, str, bool, type(None), complex, list, tuple, dict, set, frozenset})
_BUFFERS = (bytes, bytearray, array.array, mmap.mmap)
_LARGE_BUFFER = 1 << 16


@dataclass(frozen=True)
class Held:
    """Bytes that an object holds.

    ``array_bytes`` are the distinct bytes of tensors, arrays and large buffers; ``heap_bytes`` of them lie in
    anonymous memory, the others in mapped ``files`` or in shared memory. ``object_bytes`` is the sum of
    ``sys.getsizeof`` of all the rest, each object once.
    """

    array_bytes: int
    heap_bytes: int
    object_bytes: int
    files: tuple[str, ...] = ()


def held(root: Any) -> Held:
    """Walk from ``root`` along ``gc.get_referents``, each object once, never out through modules and classes.

    Two views of one storage, or an array and its tensor, are one span of addresses and count once. What C
    code keeps and does not show to Python (pixels of an image library) is not seen.
    """
    spans, object_bytes = _walked(root)
    return _located(spans, object_bytes)


def spans_of(root: Any) -> list[Span]:
    """Where the arrays are that can be reached from ``root``, ascending and apart."""
    return _walked(root)[0]


def _walked(root: Any) -> tuple[list[Span], int]:
    spans: list[Span] = []
    object_bytes = 0
    seen: set[int] = set()
    frontier = [root]
    while frontier:
        plain, others = _sorted_out(frontier, seen)
        object_bytes += sum(map(sys.getsizeof, plain))
        for item in others:
            own = _spans(item)
            spans += own
            object_bytes += _header_bytes(item, own)
        frontier = gc.get_referents(*plain)
        frontier += [part for item in others for part in _parts(item)]
    return _merged(spans), object_bytes


def _sorted_out(items: list[Any], seen: set[int]) -> tuple[list[Any], list[Any]]:
    """The items not seen before: those of Python's own types, which are many, and all others."""
    plain, others = [], []
    for item in items:
        if id(item) not in seen:
            seen.add(id(item))
            if type(item) in _PLAIN:
                plain.append(item)
            elif not isinstance(item, _OUTSIDE):
                others.append(item)
    return plain, others


def _parts(item: Any) -> list[Any]:
    """What an object refers to; of a function what it closes over, of an array its owner and its objects."""
    if isinstance(item, types.FunctionType):
        return [item.__closure__, item.__defaults__, item.__kwdefaults__]
    if not isinstance(item, np.ndarray):
        return gc.get_referents(item)
    parts = item.reshape(-1).tolist() if item.dtype.hasobject else []
    # a map's own mmap object spans whole pages, more than the array
    return parts if isinstance(item.base, _BUFFERS) else [*parts, item.base]


def _spans(item: Any) -> list[Span]:
    if isinstance(item, torch.Tensor):
        return [span for part in _dense_parts(item) for span in _storage_span(part.untyped_storage())]
    if isinstance(item, torch.UntypedStorage):
        return _storage_span(item)
    if isinstance(item, np.ndarray):
        return _array_span(item)
    if isinstance(item, _BUFFERS) and len(item) >= _LARGE_BUFFER:
        return _array_span(np.frombuffer(item, np.uint8))
    return []


def _dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that make up a tensor in this machine's memory."""
    if tensor.device.type != "cpu":
        return []
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def _storage_span(storage: torch.UntypedStorage) -> list[Span]:
    if storage.device.type != "cpu" or not storage.nbytes():
        return []
    return [(storage.data_ptr(), storage.data_ptr() + storage.nbytes())]


def _array_span(values: np.ndarray[Any, Any]) -> list[Span]:
    """From the lowest to the highest byte that the array's strides reach."""
    if not values.size:
        return []
    steps = [(n - 1) * stride for n, stride in zip(values.shape, values.strides, strict=True)]
    start: int = values.__array_interface__["data"][0]
    lowest, highest = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    return [(start + lowest, start + highest + values.itemsize)]


def _header_bytes(item: Any, spans: list[Span]) -> int:
    """``sys.getsizeof`` less the content that is counted as a span."""
    if isinstance(type(item).__sizeof__, types.FunctionType):
        return object.__sizeof__(item)  # a class's own idea of its size includes what it refers to
    size, content = sys.getsizeof(item), sum(stop - start for start, stop in spans)
    return size - content if size >= content else size


def _merged(spans: list[Span]) -> list[Span]:
    """The union of the spans, ascending."""
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _located(spans: list[Span], object_bytes: int) -> Held:
    elsewhere, files = 0, set()
    for start, stop, path in _named_mappings():
        first = bisect_right(spans, start, key=itemgetter(1))
        last = bisect_left(spans, stop, key=itemgetter(0))
        inside = sum(min(stop, b) - max(start, a) for a, b in spans[first:last])
        elsewhere += inside
        if inside and Path(path).is_file() and not path.startswith("/dev/"):
            files.add(path)
    total = sum(stop - start for start, stop in spans)
    return Held(total, total - elsewhere, object_bytes, tuple(sorted(files)))


def _named_mappings() -> Iterator[tuple[int, int, str]]:
    """This process's mappings of files and shared memory; none where there is no /proc."""
    if not os.path.exists("/proc/self/maps"):
        return
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)  # 7f00-7f10 r--p 00000000 fe:01 1234 /path of/the file
        if len(fields) == 6 and fields[5].startswith("/"):
            start, _, stop = fields[0].partition("-")
            yield int(start, 16), int(stop, 16), fields[5]

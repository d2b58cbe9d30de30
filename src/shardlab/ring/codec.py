"""A nested batch in a flat part of memory, and back as views of it.

A part is: the size of the description, the description, arrays. The description is MessagePack and holds all
that is no array, strings and numbers among it; an array lies at an aligned offset behind it. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from shardlab.errors import RunFailed

ALIGN = 64
HEAD_BYTES = 8
PLAIN = (str, bytes, int, float, bool, type(None))
Bytes = NDArray[np.uint8]


def encode(batch: Any, part: Bytes) -> None:
    """Write a batch into a part and its description's size before it.

    Raises RunFailed where it does not fit, and TypeError for what would not come out as it went in.
    """
    description, arrays, needed = _described(batch)
    put_description(description, needed, part)
    offset = data_start(description)
    for array in arrays:
        raw = as_bytes(array)
        part[offset : offset + raw.nbytes] = raw
        offset += aligned(raw.nbytes)


def sizes_of(batch: Any) -> tuple[bytes, int]:
    """The description of a batch and the bytes that its arrays need."""
    description, _arrays, needed = _described(batch)
    return description, needed


def _described(batch: Any) -> tuple[bytes, list[Any], int]:
    arrays: list[Any] = []
    used = [0]
    return msgspec.msgpack.encode(_walk(batch, used, arrays)), arrays, used[0]


def _walk(value: Any, used: list[int], arrays: list[Any]) -> list[Any]:
    # No function inside another that calls itself: that is a cycle, which would keep the batch alive.
    if isinstance(value, (torch.Tensor, np.ndarray)):
        _refuse_what_is_more_than_bytes(value)
        tensor = isinstance(value, torch.Tensor)
        found = ["a", dtype_name(value), list(value.shape), used[0], value.nbytes, tensor]
        used[0] += aligned(value.nbytes)
        arrays.append(value)
        return found
    if isinstance(value, Mapping):
        return ["d", [[_plain(key), _walk(item, used, arrays)] for key, item in value.items()]]
    if type(value) in (list, tuple):
        kind = "t" if isinstance(value, tuple) else "l"
        return [kind, [_walk(item, used, arrays) for item in value]]
    return ["v", _plain(value)]


def _plain(value: Any) -> Any:
    """What MessagePack gives back as it was."""
    if type(value) not in PLAIN:
        raise TypeError(
            f"a batch in the ring is made of tensors, arrays, dicts, lists, tuples, numbers, texts and bytes, "
            f"but got {type(value).__module__}.{type(value).__qualname__}. Cure: --sampler keyed"
        )
    return value


def _refuse_what_is_more_than_bytes(array: Any) -> None:
    dtype = array.dtype
    if isinstance(array, np.ndarray) and (dtype.hasobject or dtype.names is not None):
        raise TypeError(
            f"a batch in the ring has arrays of plain numbers, but got {dtype}. Cure: --sampler keyed"
        )
    if isinstance(array, torch.Tensor) and (array.layout != torch.strided or array.is_quantized):
        raise TypeError(
            f"a batch in the ring has dense tensors, but got {array.layout}. Cure: --sampler keyed"
        )


def put_description(description: bytes, needed: int, part: Bytes) -> None:
    """Write the description and its size. Raises RunFailed where arrays of ``needed`` bytes do not fit behind it."""
    whole = data_start(description) + needed
    if whole > part.nbytes:
        raise RunFailed(
            f"a batch of {whole:,} bytes does not fit into a slot of {part.nbytes:,} bytes per rank. "
            "Cure: --sampler accelerate-shard, or shardlab.loader(..., slot_bytes=...) with more"
        )
    part[:HEAD_BYTES].view(np.int64)[0] = len(description)
    part[HEAD_BYTES : HEAD_BYTES + len(description)] = np.frombuffer(description, np.uint8)


def decode(part: Bytes) -> Any:
    """The batch, its arrays being views that keep the very object ``part``, and no more of the ring than that."""
    length = int(part[:HEAD_BYTES].view(np.int64)[0])
    plan = _planned(part[HEAD_BYTES : HEAD_BYTES + length].tobytes())
    # NumPy lets a view refer past the array it was made of, to what lies below it; it stops at a buffer.
    return _built(plan, np.frombuffer(part.data, np.uint8))


@dataclass(frozen=True)
class _Array:
    """Where an array lies in a part, and what it is; ``dtype`` None where only torch has it."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    torch_dtype: torch.dtype | None  # None for an array of NumPy

    def of(self, data: Bytes) -> Any:
        """The view of it."""
        raw = data[self.start : self.stop]
        if self.dtype is not None:
            array = raw.view(self.dtype).reshape(self.shape)
            return array if self.torch_dtype is None else torch.from_numpy(array)
        assert self.torch_dtype is not None
        return torch.from_numpy(raw).view(self.torch_dtype).reshape(self.shape)


@lru_cache(maxsize=16)
def _planned(description: bytes) -> Any:
    """What to build. Most batches have the shapes of the one before, so it is kept and must not be changed."""
    return _plan(msgspec.msgpack.decode(description), data_start(description))


def _plan(node: Any, start: int) -> Any:
    kind = node[0]
    if kind == "a":
        _, name, shape, offset, nbytes, is_tensor = node
        dtype = _numpy_dtype(name) if is_tensor else np.dtype(name)
        torch_dtype = getattr(torch, name) if is_tensor else None
        return _Array(start + offset, start + offset + nbytes, tuple(shape), dtype, torch_dtype)
    if kind == "d":
        return kind, [(key, _plan(item, start)) for key, item in node[1]]
    if kind == "v":
        return kind, node[1]
    return kind, [_plan(item, start) for item in node[1]]


def _numpy_dtype(name: str) -> np.dtype[Any] | None:
    try:
        return torch.empty(0, dtype=getattr(torch, name)).numpy().dtype
    except TypeError:
        return None


def _built(plan: Any, data: Bytes) -> Any:
    if type(plan) is _Array:
        return plan.of(data) if plan.stop > plan.start else _empty(plan)
    kind, content = plan
    if kind == "d":
        return {key: _built(item, data) for key, item in content}
    if kind == "v":
        return content
    items = [_built(item, data) for item in content]
    return tuple(items) if kind == "t" else items


def _empty(array: _Array) -> Any:
    """An empty tensor has no stride by which it could be viewed as another dtype."""
    if array.torch_dtype is None:
        return np.empty(array.shape, array.dtype)
    return torch.empty(array.shape, dtype=array.torch_dtype)


def dtype_name(array: Any) -> str:
    """``float32`` for tensors, ``<f4`` for arrays."""
    return (
        str(array.dtype).removeprefix("torch.") if isinstance(array, torch.Tensor) else str(array.dtype.str)
    )


def data_start(description: bytes) -> int:
    """Offset of the first array in a part."""
    return aligned(HEAD_BYTES + len(description))


def aligned(nbytes: int) -> int:
    """The next multiple of ALIGN."""
    return -(-nbytes // ALIGN) * ALIGN


def as_bytes(array: Any) -> Bytes:
    """The bytes of a tensor or array in C order, shape (nbytes,); a copy only where they do not lie so."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    if isinstance(array, torch.Tensor):
        try:
            array = array.numpy()
        except (RuntimeError, TypeError):  # part of a graph, elsewhere, or of a dtype that only torch has
            plain = array.detach().cpu().resolve_conj().resolve_neg().contiguous()
            array = plain.reshape(-1).view(torch.uint8).numpy()
    raw: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return raw

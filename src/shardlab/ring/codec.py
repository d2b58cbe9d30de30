"""A nested batch in a flat part of memory, and back as views of it.

A part is: head words, description, arrays. The description is MessagePack and holds all that is no array,
strings and numbers among it; an array lies at an aligned offset behind it. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from shardlab.errors import RunFailed
from shardlab.ring.memory import PART_WORDS, Part

ALIGN = 64
HEAD_BYTES = 8 * PART_WORDS
Bytes = NDArray[np.uint8]


def encode(batch: Any, part: Bytes) -> None:
    """Write a batch into a part and its description's size into the head.

    Raises RunFailed where it does not fit, and TypeError for what neither is an array nor MessagePack can hold.
    """
    arrays: list[Any] = []
    description, needed = describe(batch, arrays.append)
    start = data_start(description)
    if start + needed > part.nbytes:
        raise RunFailed(
            f"a batch of {start + needed:,} bytes does not fit into a slot of {part.nbytes:,} bytes per rank. "
            "Cure: --sampler accelerate-shard, or shardlab.loader(..., slot_bytes=...) with more"
        )
    put_description(description, part)
    offset = start
    for array in arrays:
        raw = as_bytes(array)
        part[offset : offset + raw.nbytes] = raw
        offset += aligned(raw.nbytes)


def describe(batch: Any, collect: Callable[[Any], None]) -> tuple[bytes, int]:
    """The description of a batch and the bytes that its arrays need; each array goes to ``collect``."""
    used = 0

    def walk(value: Any) -> Any:
        nonlocal used
        if isinstance(value, (torch.Tensor, np.ndarray)):
            tensor = isinstance(value, torch.Tensor)
            dtype = dtype_name(value)
            found = ["a", dtype, list(value.shape), used, value.nbytes, tensor]
            used += aligned(value.nbytes)
            collect(value)
            return found
        if isinstance(value, Mapping):
            return ["d", [[key, walk(item)] for key, item in value.items()]]
        if isinstance(value, (list, tuple)):
            return ["t" if isinstance(value, tuple) else "l", [walk(item) for item in value]]
        return ["v", value]

    return msgspec.msgpack.encode(walk(batch)), used


def put_description(description: bytes, part: Bytes) -> None:
    """Write the description and its size."""
    part[:HEAD_BYTES].view(np.int64)[Part.DESCRIPTION] = len(description)
    part[HEAD_BYTES : HEAD_BYTES + len(description)] = np.frombuffer(description, np.uint8)


def decode(part: Bytes, on_view: Callable[[NDArray[Any]], None]) -> Any:
    """The batch, its arrays being views of the part; ``on_view`` is given the array behind each of them."""
    length = int(part[:HEAD_BYTES].view(np.int64)[Part.DESCRIPTION])
    description = part[HEAD_BYTES : HEAD_BYTES + length].tobytes()
    start = data_start(description)

    def build(node: Any) -> Any:
        kind = node[0]
        if kind == "a":
            return _array(node, part[start:], on_view)
        if kind == "d":
            return {key: build(item) for key, item in node[1]}
        if kind == "v":
            return node[1]
        items = [build(item) for item in node[1]]
        return tuple(items) if kind == "t" else items

    return build(_parsed(description))


@lru_cache(maxsize=16)
def _parsed(description: bytes) -> Any:
    """Most batches have the shapes of the one before. What comes out must not be changed."""
    return msgspec.msgpack.decode(description)


def _array(node: Any, data: Bytes, on_view: Callable[[NDArray[Any]], None]) -> Any:
    _, dtype, shape, offset, nbytes, tensor = node
    raw = data[offset : offset + nbytes]
    on_view(raw)  # lives as long as the storage that torch makes of it, and so as any view
    owner = torch.from_numpy(raw)
    if tensor:
        return owner.view(getattr(torch, dtype)).reshape(shape)
    # Through the tensor: NumPy would let views refer past `raw` to what lies below it, and `raw` would die.
    return owner.numpy().view(np.dtype(dtype)).reshape(shape)


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
    """The bytes of a tensor or array in C order, shape (nbytes,)."""
    if isinstance(array, torch.Tensor):
        return array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

"""One safetensors file: eight bytes of length, a JSON header, the data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path

import msgspec
import numpy as np
import torch

from shardlab.errors import RunFailed
from shardlab.shards.manifest import ITEM_BYTES, Field

_NAMES = {  # safetensors' name of each torch dtype
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "float16": "F16",
    "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "float32": "F32", "int64": "I64", "uint64": "U64",
    "float64": "F64",
}  # fmt: skip


class Tensor(msgspec.Struct):
    """A tensor as the header describes it; offsets count from the start of the data."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def map_fields(file: BufferedReader, path: Path, fields: Iterable[Field], samples: int) -> list[torch.Tensor]:
    """Map the file once, private and writable; a tensor of shape (samples, *shape) over it for each field.

    Raises RunFailed naming the file where its header does not say what the fields say.
    """
    raw = np.memmap(file, np.uint8, mode="c")
    data_start, tensors = _header(raw, path)
    data = torch.from_numpy(raw)[data_start:]
    return [_view(data, tensors.get(field.name), field, samples, path) for field in fields]


def _header(raw: np.memmap[tuple[int], np.dtype[np.uint8]], path: Path) -> tuple[int, dict[str, Tensor]]:
    length = int.from_bytes(raw[:8].tobytes(), "little")
    if not 2 <= length <= len(raw) - 8:
        raise RunFailed(f"shard {path} is no safetensors file: its header would have {length} bytes")
    try:
        parts = msgspec.json.decode(raw[8 : 8 + length].tobytes(), type=dict[str, msgspec.Raw])
        tensors = {
            name: msgspec.json.decode(part, type=Tensor)
            for name, part in parts.items()
            if name != "__metadata__"
        }
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFailed(f"shard {path} has a broken header: {error}") from None
    return 8 + length, tensors


def _view(data: torch.Tensor, found: Tensor | None, field: Field, samples: int, path: Path) -> torch.Tensor:
    shape = (samples, *field.shape)
    size = ITEM_BYTES[field.dtype] * math.prod(shape)
    if found is None:
        raise RunFailed(f"shard {path} lacks the field {field.name!r}")
    start, stop = found.data_offsets
    fits = 0 <= start <= stop <= len(data) and stop - start == size
    if not fits or found.dtype != _NAMES[field.dtype] or tuple(found.shape) != shape:
        raise RunFailed(
            f"shard {path} holds {field.name!r} as {found.dtype} of shape {found.shape} at "
            f"{found.data_offsets}, the manifest says {_NAMES[field.dtype]} of shape {list(shape)}"
        )
    part = data[start:stop]
    if part.data_ptr() % ITEM_BYTES[field.dtype]:  # safetensors allows it, torch's dtype views do not
        part = part.clone()
    return part.view(getattr(torch, field.dtype)).view(shape)

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
from shardlab.shards._columns import Column, Varying
from shardlab.shards.manifest import ENDS, ITEM_BYTES, SHAPES, Field

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


def map_fields(file: BufferedReader, path: Path, fields: Iterable[Field], samples: int) -> list[Column]:
    """Map the file once, private and writable; a column over it for each field.

    Raises RunFailed naming the file where its header does not say what the fields say.
    """
    raw = np.memmap(file, np.uint8, mode="c")
    data_start, tensors = _header(raw, path)
    shard = _Shard(path, torch.from_numpy(raw)[data_start:], tensors)
    return [shard.column(field, samples) for field in fields]


class _Shard:
    """The tensors of a mapped file by their names."""

    def __init__(self, path: Path, data: torch.Tensor, tensors: dict[str, Tensor]) -> None:
        self.path, self.data, self.tensors = path, data, tensors

    def column(self, field: Field, samples: int) -> Column:
        """The rows of a field."""
        if field.kind == "fixed":
            return self.view(field.name, field.dtype, (samples, *field.shape))
        if field.kind == "varies" and field.name + ENDS not in self.tensors:
            found = self.tensors.get(field.name)
            shape = () if found is None else tuple(found.shape)
            if len(shape) != 1 + field.axes or any(not 0 <= n < 1 << 40 for n in shape):
                raise RunFailed(f"shard {self.path} lacks rows of {field.axes} axes of field {field.name!r}")
            return self.view(field.name, field.dtype, (samples, *shape[1:]))
        ends = self.view(field.name + ENDS, "int64", (samples,))
        shapes = None
        if field.kind == "varies":
            shapes = self.view(field.name + SHAPES, "int64", (samples, field.axes))
        column = Varying(field.kind, self.view(field.name, field.dtype, None), ends, shapes)
        if wrong := column.wrong():
            raise RunFailed(f"shard {self.path}: field {field.name!r}: {wrong}")
        return column

    def view(self, name: str, dtype: str, shape: tuple[int, ...] | None) -> torch.Tensor:
        """A tensor of the file; ``shape`` None is one axis of any length."""
        found = self.tensors.get(name)
        if found is None:
            raise RunFailed(f"shard {self.path} lacks the field {name!r}")
        item = ITEM_BYTES[dtype]
        start, stop = found.data_offsets
        if shape is None:
            shape = (max(0, stop - start) // item,)
        fits = 0 <= start <= stop <= len(self.data) and stop - start == item * math.prod(shape)
        if not fits or found.dtype != _NAMES[dtype] or tuple(found.shape) != shape:
            raise RunFailed(
                f"shard {self.path} holds {name!r} as {found.dtype} of shape {found.shape} at "
                f"{found.data_offsets}, the manifest says {_NAMES[dtype]} of shape {list(shape)}"
            )
        part = self.data[start:stop]
        if part.data_ptr() % item:  # safetensors allows it, torch's dtype views do not
            part = part.clone()
        return part.view(getattr(torch, dtype)).view(shape)


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

"""From a sample to one row of each field of a shard, and rows together as the arrays of a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shardlab.errors import UsageError
from shardlab.shards.manifest import ENDS, ITEM_BYTES, SHAPES, Field, Structure

Value = torch.Tensor | str | bytes
Row = list[Value]

SINGLE = "data"
"""Name of the field where a sample is a single tensor."""

_RESERVED = "__metadata__"  # safetensors keeps this name for itself


def fields_of(sample: Any) -> tuple[Structure, tuple[Field, ...]]:
    """The structure and the fields that every sample must then have. Raises UsageError naming the field."""
    structure: Structure = "tensor"
    if isinstance(sample, dict):
        structure = "dict"
    elif isinstance(sample, tuple | list):
        structure = "tuple"
    named = _named(sample, structure, 0)
    if not named or _RESERVED in named:
        raise UsageError(f"a sample must have fields, none of them named {_RESERVED}", list(named))
    fields = tuple(_field(name, _value(value, name, 0)) for name, value in named.items())
    for field in fields:  # a shape may come to differ later
        beside = {field.name + ENDS, field.name + SHAPES} & named.keys()
        if beside and (field.axes or field.kind != "fixed"):
            raise UsageError(
                f"names of fields must not be those of arrays beside {field.name!r}", sorted(beside)
            )
    return structure, fields


def row_of(sample: Any, structure: Structure, fields: tuple[Field, ...], index: int) -> Row:
    """The sample's values in the order of the fields. Raises UsageError where unlike sample 0.

    The shape of a tensor may differ, its dtype and number of axes may not.
    """
    named = _named(sample, structure, index)
    if named.keys() != {field.name for field in fields}:
        raise _unlike("fields", sorted(named), sorted(field.name for field in fields), index)
    row = []
    for field in fields:
        value = _value(named[field.name], field.name, index)
        found = _field(field.name, value)
        if _type(found) != _type(field):
            raise _unlike(f"field {field.name!r}", _type(found), _type(field), index)
        if found.axes != field.axes:
            raise _unlike(f"axes of field {field.name!r}", found.axes, field.axes, index)
        row.append(value)
    return row


def _field(name: str, value: Value) -> Field:
    if isinstance(value, torch.Tensor):
        return Field(name, _dtype(value), tuple(value.shape), axes=value.dim())
    return Field(name, "uint8", kind="str" if isinstance(value, str) else "bytes")


def _type(field: Field) -> str:
    return field.kind if field.kind in ("str", "bytes") else field.dtype


def _named(sample: Any, structure: Structure, index: int) -> dict[str, Any]:
    if structure == "tensor":
        return {SINGLE: sample}
    if structure == "tuple" and isinstance(sample, tuple | list):
        return {str(place): item for place, item in enumerate(sample)}
    if structure == "dict" and isinstance(sample, dict):
        if not all(isinstance(key, str) for key in sample):
            raise UsageError("names of a sample's fields must be text", f"{list(sample)} in sample {index}")
        return sample
    raise _unlike("structure", type(sample).__name__, structure, index)


def _value(value: Any, name: str, index: int) -> Value:
    if isinstance(value, str):
        if value.isascii() or _is_unicode(value):
            return str(value)
        raise UsageError("text in shards must be Unicode", f"{value!r} in field {name!r} of sample {index}")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    return _tensor(value, name, index)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _tensor(value: Any, name: str, index: int) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and _dtype(value) in ITEM_BYTES and value.layout == torch.strided:
        return value.detach()
    numeric = isinstance(value, bool | int | float) or (
        isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf"
    )
    try:
        if numeric:
            return torch.tensor(value)  # of an array a copy: it may be read-only
    except (RuntimeError, TypeError, ValueError, OverflowError):
        pass  # an int beyond 64 bits, a dtype or byte order that torch lacks
    kind = str(value.dtype) if hasattr(value, "dtype") else type(value).__name__
    raise UsageError(
        "shards hold tensors, arrays, numbers, text and bytes",
        f"{kind} in field {name!r} of sample {index}",
        cure="turn it into one of these",
    )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _unlike(what: str, found: object, first: object, index: int) -> UsageError:
    return UsageError(
        f"{what} of all samples must be as in sample 0 ({first})",
        f"{found} in sample {index}",
        cure="bring the samples to one dtype and number of axes",
    )


class Filling:
    """The rows of a field in the shard that is being filled, as bytes one after another."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self._data = bytearray()
        self._ends: list[int] = []  # in bytes
        self._shapes: list[tuple[int, ...]] = []

    def add(self, value: Value) -> None:
        """One more row, copied."""
        self._data += raw_of(value)
        self._ends.append(len(self._data))
        if isinstance(value, torch.Tensor):
            self._shapes.append(tuple(value.shape))

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The one shape of all rows; None where they differ."""
        return self._shapes[0] if self._shapes and len(set(self._shapes)) == 1 else None

    def arrays(self) -> dict[str, torch.Tensor]:
        """What the file holds for the field, by name."""
        name, dtype = self.field.name, getattr(torch, self.field.dtype)
        flat = torch.frombuffer(self._data, dtype=dtype) if self._data else torch.empty(0, dtype=dtype)
        if self.shape is not None:
            return {name: flat.view(len(self._ends), *self.shape)}
        ends = torch.tensor(self._ends, dtype=torch.int64) // ITEM_BYTES[self.field.dtype]
        arrays = {name: flat, name + ENDS: ends}
        if self._shapes:
            arrays[name + SHAPES] = torch.tensor(self._shapes, dtype=torch.int64).view(len(ends), -1)
        return arrays


def raw_of(value: Value) -> bytes | memoryview:
    """The bytes of a value."""
    if isinstance(value, torch.Tensor):
        return value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return value.encode() if isinstance(value, str) else value

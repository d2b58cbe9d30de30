"""From a sample to one row of each field of a shard."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shardlab.errors import UsageError
from shardlab.shards.manifest import ITEM_BYTES, Field, Structure

Row = list[torch.Tensor]

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
    tensors = {name: _tensor(value, name, 0) for name, value in named.items()}
    return structure, tuple(Field(name, _dtype(t), tuple(t.shape)) for name, t in tensors.items())


def row_of(sample: Any, structure: Structure, fields: tuple[Field, ...], index: int) -> Row:
    """The sample's tensors in the order of the fields. Raises UsageError where unlike sample 0."""
    named = _named(sample, structure, index)
    if named.keys() != {field.name for field in fields}:
        raise _unlike("fields", sorted(named), sorted(field.name for field in fields), index)
    row = []
    for field in fields:
        tensor = _tensor(named[field.name], field.name, index)
        if tuple(tensor.shape) != field.shape:
            found, first = f"shape {list(tensor.shape)}", f"shape {list(field.shape)}"
            raise _unlike(f"field {field.name!r}", found, first, index)
        if _dtype(tensor) != field.dtype:
            raise _unlike(f"field {field.name!r}", _dtype(tensor), field.dtype, index)
        row.append(tensor)
    return row


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
        "shards hold tensors, arrays and numbers", f"{kind} in field {name!r} of sample {index}",
        cure="turn it into numbers of one shape",
    )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _unlike(what: str, found: object, first: object, index: int) -> UsageError:
    return UsageError(
        f"{what} of all samples must be as in sample 0 ({first})", f"{found} in sample {index}",
        cure="bring the samples to one shape and dtype, by cutting or padding",
    )

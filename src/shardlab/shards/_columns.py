"""One field of many samples: rows of one shape, or rows that differ in length, one after another in one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from shardlab.shards.manifest import Field, Structure


@dataclass
class Varying:
    """Rows of differing length::

    flat    |-- row 0 --|- row 1 -|------- row 2 -------|        the elements of all rows
    ends                4         6                     13       int64[rows]
    shapes      2 2         1 2           ...                    int64[rows, axes]; None for text and bytes
    """

    kind: str
    flat: torch.Tensor
    ends: torch.Tensor
    shapes: torch.Tensor | None

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> Any:
        start = int(self.ends[row - 1]) if row else 0
        part = self.flat[start : int(self.ends[row])]
        if self.shapes is not None:
            return part.view(self.shapes[row].tolist())
        raw = part.numpy().tobytes()
        return raw.decode() if self.kind == "str" else raw

    def wrong(self) -> str:
        """What contradicts itself in it; empty where nothing does."""
        sizes = np.diff(self.ends.numpy(), prepend=0)
        if (sizes < 0).any() or sizes.sum() != len(self.flat):
            return f"ends do not divide its {len(self.flat)} elements"
        if self.shapes is None:
            return ""
        shapes = self.shapes.numpy()
        # zeros left out and in floating point: a product of lengths must not wrap around
        room = np.prod(np.maximum(shapes, 1).astype(np.float64), axis=1)
        if (shapes < 0).any() or (room > 2.0**60).any() or (np.prod(shapes, axis=1) != sizes).any():
            return "shapes do not fit its ends"
        return ""


Column = torch.Tensor | Varying
"""``column[row]`` is the field's value in a sample."""


def cut(column: Column, first: int, last: int) -> Column:
    """Rows ``first`` to ``last - 1``, copied."""
    if isinstance(column, torch.Tensor):
        return column[first:last].clone()
    start = int(column.ends[first - 1]) if first else 0
    stop = int(column.ends[last - 1]) if last else 0
    shapes = None if column.shapes is None else column.shapes[first:last].clone()
    return Varying(column.kind, column.flat[start:stop].clone(), column.ends[first:last] - start, shapes)


def joined(columns: Sequence[Column], field: Field) -> Column:
    """Rows of several columns of one field, one after another."""
    if field.kind == "fixed":
        rows = [column for column in columns if isinstance(column, torch.Tensor)]
        empty = torch.empty((0, *field.shape), dtype=getattr(torch, field.dtype))
        return torch.cat(rows) if rows else empty
    varying = [column if isinstance(column, Varying) else _uneven(column) for column in columns]
    flat, ends, shapes, total = [], [], [], 0
    for column in varying:
        flat.append(column.flat)
        ends.append(column.ends + total)
        if column.shapes is not None:
            shapes.append(column.shapes)
        total += len(column.flat)
    none = torch.empty(0, dtype=torch.int64)
    return Varying(
        field.kind,
        torch.cat(flat) if flat else torch.empty(0, dtype=getattr(torch, field.dtype)),
        torch.cat(ends) if ends else none,
        None if field.kind != "varies" else torch.cat(shapes) if shapes else none.view(0, field.axes),
    )


def _uneven(column: torch.Tensor) -> Varying:
    """Rows of one shape as rows of any."""
    shapes = torch.tensor([column.shape[1:]] * len(column), dtype=torch.int64).view(len(column), -1)
    size = column[0].numel() if len(column) else 0
    ends = torch.arange(1, len(column) + 1, dtype=torch.int64) * size
    return Varying("varies", column.reshape(-1), ends, shapes)


def assemble(values: Sequence[Any], structure: Structure, fields: Sequence[Field]) -> Any:
    """One value for each field, in the structure of a sample."""
    if structure == "tensor":
        return values[0]
    if structure == "tuple":
        return tuple(values)
    return {field.name: value for field, value in zip(fields, values, strict=True)}


class Collate:
    """A batch as torch collates it, but of a field whose tensors differ in shape it is a list of them."""

    def __init__(self, structure: Structure, fields: Sequence[Field]) -> None:
        self.structure, self.fields = structure, tuple(fields)

    def __call__(self, samples: list[Any]) -> Any:
        keys = [field.name if self.structure == "dict" else place for place, field in enumerate(self.fields)]
        values = [
            self._column([sample if self.structure == "tensor" else sample[key] for sample in samples], field)
            for key, field in zip(keys, self.fields, strict=True)
        ]
        batch = assemble(values, self.structure, self.fields)
        return list(batch) if isinstance(batch, tuple) else batch

    def _column(self, values: list[Any], field: Field) -> Any:
        return values if field.kind == "varies" else default_collate(values)


class Columns(Dataset[Any]):
    """Samples of which a field at least differs in length, held in memory as one array for each field."""

    def __init__(self, columns: Sequence[Column], structure: Structure, fields: Sequence[Field]) -> None:
        self.columns, self.structure, self.fields = list(columns), structure, tuple(fields)
        self.collate_fn = Collate(structure, fields)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return assemble([column[index] for column in self.columns], self.structure, self.fields)

"""Many samples at once: the rows of a dataset of arrays gathered in one call for each array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from shardlab.dataset._arrays import ArrayDataset, ArrayTree

GATHERED_BYTES = 4096  # gathering 64 samples and cutting them apart costs less than 64 views up to twice this
Bytes = NDArray[np.uint8]


class Rows:
    """The arrays of a dataset as rows of bytes, and their shapes.

    ``period``: only so many rows are there, which repeat; None where every index has its own row.
    """

    def __init__(self, tree: ArrayTree, period: int | None = None) -> None:
        self.tree = tree
        self.period = period
        self._dataset = ArrayDataset(tree)
        self.leaves = self._dataset.leaves
        self._numpy = [_numpy_dtype(leaf) for leaf in self.leaves]
        # raw: (rows, bytes of a row)
        self._raw = [leaf.reshape(len(leaf), -1).view(torch.uint8).numpy() for leaf in self.leaves]

    @property
    def row_bytes(self) -> list[int]:
        """Bytes of a row of each array."""
        return [raw.shape[1] for raw in self._raw]

    def take(self, indices: NDArray[np.int64], out: Sequence[Bytes]) -> None:
        """Write the rows at ``indices`` into ``out``: one array of shape (len(indices), row bytes) for each leaf.

        The indices have to be right: one outside the dataset is clipped, since NumPy would otherwise gather
        into a buffer of its own first.
        """
        if self.period is not None:
            indices = indices % self.period
        for raw, target in zip(self._raw, out, strict=True):
            np.take(raw, indices, axis=0, out=target, mode="clip")

    def batch(self, indices: NDArray[np.int64]) -> Any:
        """The batch of the samples at ``indices``, whole numbers of shape (m,), in memory of its own.

        Raises IndexError outside [0, len), and for what is no such array, a mask among it.
        """
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise IndexError(
                f"indices must be whole numbers on one axis, but got {indices.dtype} of shape {indices.shape}"
            )
        indices = np.ascontiguousarray(indices, np.int64)
        count, rows = len(indices), len(self.leaves[0])
        if not count:
            return self.assemble([leaf[:0].clone() for leaf in self.leaves])
        if self.period is None and np.maximum.reduce(indices.view(np.uint64)) >= rows:
            raise IndexError(f"indices must lie in [0, {rows}), but got {indices}")
        raw = [np.empty(count * nbytes, np.uint8) for nbytes in self.row_bytes]
        self.take(indices, [flat.reshape(count, n) for flat, n in zip(raw, self.row_bytes, strict=True)])
        return self.assemble(self.as_tensors(raw, count))

    def samples(self, indices: Sequence[int]) -> list[Any]:
        """The samples one by one, as a stock DataLoader asks for them by ``__getitems__``.

        Small ones are gathered in one call; of large ones that would be one more copy than looking them up.
        """
        if sum(self.row_bytes) > GATHERED_BYTES:
            return [self._dataset[index if self.period is None else index % self.period] for index in indices]
        batch = self.batch(np.asarray(indices, np.int64))
        if isinstance(batch, torch.Tensor):
            return list(batch.unbind())
        rows = zip(*(leaf.unbind() for leaf in (batch.values() if isinstance(batch, dict) else batch)), strict=True)
        return [dict(zip(batch, row, strict=True)) for row in rows] if isinstance(batch, dict) else list(rows)

    def shapes(self, count: int) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape of each leaf of a batch of ``count`` rows."""
        return [(leaf.dtype, (count, *leaf.shape[1:])) for leaf in self.leaves]

    def as_tensors(self, raw: Sequence[Bytes], count: int) -> list[torch.Tensor]:
        """Flat bytes as the leaves of a batch of ``count`` rows; they keep the very objects in ``raw``.

        A view that NumPy makes keeps what lies below the array it is made of, but not that one, unless a buffer
        stands between them.
        """
        return [
            torch.from_numpy(flat).view(leaf.dtype).reshape(count, *leaf.shape[1:])
            if dtype is None
            else torch.from_numpy(np.frombuffer(flat.data, dtype).reshape(count, *leaf.shape[1:]))
            for leaf, dtype, flat in zip(self.leaves, self._numpy, raw, strict=True)
        ]

    def assemble(self, leaves: Sequence[Any]) -> Any:
        """Leaves in the structure of a batch, as the stock collate function builds it."""
        if isinstance(self.tree, torch.Tensor):
            return leaves[0]
        if isinstance(self.tree, dict):
            return dict(zip(self.tree, leaves, strict=True))
        return list(leaves)


def _numpy_dtype(leaf: torch.Tensor) -> np.dtype[Any] | None:
    """As NumPy has it; None for those that only torch has."""
    try:
        return np.dtype(leaf[:0].numpy().dtype)
    except TypeError:
        return None


def rows_of(dataset: Any) -> Rows | None:
    """The rows of a dataset that is arrays and nothing else; None for all others, which are read one by one.

    Looks through the wrappers that a store and a control run put around it. torch's ``TensorDataset`` is one
    too.
    """
    period = None
    while type(dataset) not in (ArrayDataset, TensorDataset):  # a subclass may do more than look a sample up
        period = getattr(dataset, "period", period)
        dataset = getattr(dataset, "wraps", None)
        if dataset is None:
            return None
    if hasattr(dataset, "collate_fn"):
        return None  # its batches are not stacked rows
    tree = dataset.tree if isinstance(dataset, ArrayDataset) else tuple(dataset.tensors)
    leaves = ArrayDataset(tree).leaves if tree is not None and len(tree) else ()
    return Rows(tree, period) if leaves and all(map(_is_rows, leaves)) else None


def _is_rows(leaf: torch.Tensor) -> bool:
    """Whether its bytes are the rows, one after the other, and no more than that."""
    return (
        type(leaf) is torch.Tensor
        and leaf.device.type == "cpu"
        and leaf.layout == torch.strided
        and leaf.numel() > 0
        and leaf.is_contiguous()  # else each rank would make a copy of all
        and not (leaf.requires_grad or leaf.is_conj() or leaf.is_neg() or leaf.is_quantized)
    )

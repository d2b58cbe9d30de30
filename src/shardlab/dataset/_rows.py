"""Many samples at once: the rows of a dataset of arrays gathered in one call for each array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from shardlab.dataset._arrays import ArrayDataset, ArrayTree

Bytes = NDArray[np.uint8]


class Rows:
    """The arrays of a dataset as rows of bytes, and their shapes.

    ``period``: only so many rows are there, which repeat; None where every index has its own row.
    """

    def __init__(self, tree: ArrayTree, period: int | None = None) -> None:
        self.tree = tree
        self.period = period
        self.leaves = ArrayDataset(tree).leaves
        # raw: (rows, bytes of a row)
        self.descriptions: dict[
            int, bytes
        ] = {}  # of batches, by their size; filled in by whoever describes them
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

    def shapes(self, count: int) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape of each leaf of a batch of ``count`` rows."""
        return [(leaf.dtype, (count, *leaf.shape[1:])) for leaf in self.leaves]

    def assemble(self, leaves: Sequence[Any]) -> Any:
        """Leaves in the structure of a batch, as the stock collate function builds it."""
        if isinstance(self.tree, torch.Tensor):
            return leaves[0]
        if isinstance(self.tree, dict):
            return dict(zip(self.tree, leaves, strict=True))
        return list(leaves)


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

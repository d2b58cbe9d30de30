"""Many samples at once: the rows of a dataset of arrays gathered in one call for each array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
        self.descriptions: dict[int, bytes] = {}  # of batches, by their size; filled in by whoever describes them
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

    Looks through the wrappers that a store and a control run put around it.
    """
    period = None
    while not isinstance(dataset, ArrayDataset):
        period = getattr(dataset, "period", period)
        dataset = getattr(dataset, "wraps", None)
        if dataset is None:
            return None
    if type(dataset) is not ArrayDataset:
        return None  # a subclass may do more to a sample than look it up
    if any(leaf.numel() == 0 for leaf in dataset.leaves):
        return None
    return Rows(dataset.tree, period)

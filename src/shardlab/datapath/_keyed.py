"""The order that `keyed` and `ring` have in common, and how a step's batch of it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardlab.dataset._rows import Rows, rows_of
from shardlab.index.partition import Partition
from shardlab.index.permutation import Permutation, key_of
from shardlab.plan import Plan

CHUNK = 1 << 14  # indices computed at once: a call costs as much as a few hundred of them


@dataclass(frozen=True)
class Order:
    """Who gets which sample in which step: a keyed permutation, cut into global batches.

    Needs no list of indices: a chunk of a rank's is computed when the first of them is asked for.
    """

    partition: Partition
    permutation: Permutation | None
    _chunks: dict[int, tuple[int, NDArray[np.int64]]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, plan: Plan, world_size: int, epoch: int, consumed: int = 0) -> Order:
        """The order of an epoch, the part of it that is left after ``consumed`` samples."""
        assert plan.samples is not None
        partition = Partition(plan.samples, world_size, plan.batch_size, plan.tail, consumed)
        return cls(partition, Permutation(plan.samples, key_of(plan.seed, epoch)) if plan.shuffle else None)

    def indices(self, rank: int, step: int) -> NDArray[np.int64]:
        """The samples of a rank's batch: int64 of shape (batch,), shorter at a kept tail."""
        size = self.partition.batch_size
        first, chunk = self._chunks.get(rank, (step + 1, None))
        if chunk is None or not first <= step < first + max(1, CHUNK // size):
            first, chunk = step, self._computed(rank, step, step + max(1, CHUNK // size))
            self._chunks[rank] = first, chunk
        return chunk[(step - first) * size : (step - first + 1) * size]

    def _computed(self, rank: int, first: int, last: int) -> NDArray[np.int64]:
        positions = self.partition.positions(rank, first, last)
        return positions if self.permutation is None else self.permutation.permute(positions)


class BatchReader:
    """Reads the samples of a batch: arrays by one gather, anything else sample by sample through a collate."""

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any], count: Callable[[int], None]
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.count = count
        self.rows: Rows | None = rows_of(dataset)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"rows": None}  # they lie in the dataset, which may go as a handle

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.rows = rows_of(self.dataset)

    def read(self, indices: NDArray[np.int64]) -> Any:
        """The batch, read and collated as a stock DataLoader would."""
        self.count(len(indices))
        numbers = indices.tolist()
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(numbers))
        return self.collate([self.dataset[number] for number in numbers])

    def gather(self, indices: NDArray[np.int64], out: Sequence[NDArray[np.uint8]]) -> None:
        """The rows into ``out``; only where ``rows`` is not None."""
        assert self.rows is not None
        self.count(len(indices))
        self.rows.take(indices, out)


def as_tensors(rows: Rows, raw: Sequence[NDArray[np.uint8]], count: int) -> list[torch.Tensor]:
    """Flat bytes as tensors of a batch's dtypes and shapes; they keep the arrays they are views of."""
    return [
        torch.from_numpy(flat).view(dtype).reshape(shape)
        for flat, (dtype, shape) in zip(raw, rows.shapes(count), strict=True)
    ]

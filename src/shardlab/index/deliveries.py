"""The ledgers of all ranks as one table in global order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardlab.index.ledger import RankLedger
from shardlab.index.order import places


@dataclass(frozen=True)
class Deliveries:
    """Every delivery of an epoch, sorted by step, then rank, then place in the batch.

    ``rank``, ``step``, ``place``, ``index``: int64[delivered]. ``word``: uint64[delivered], ``None`` unless
    every rank kept words. ``steps``: int64[world_size]. ``values``: the distinct indices, rising, and
    ``first``: the row at which each of them stands first.
    """

    rank: NDArray[np.int64]
    step: NDArray[np.int64]
    place: NDArray[np.int64]
    index: NDArray[np.int64]
    word: NDArray[np.uint64] | None
    steps: NDArray[np.int64]
    values: NDArray[np.int64]
    first: NDArray[np.int64]

    def positions(self, world_size: int, batch_size: int) -> NDArray[np.int64]:
        """Position of each row in the global order, as ``order.global_positions`` counts it."""
        return (self.step * world_size + self.rank) * batch_size + self.place

    def repeated(self) -> NDArray[np.bool_]:
        """True at each row whose index stands in an earlier row: bool[delivered]."""
        again = np.ones(len(self.index), dtype=np.bool_)
        again[self.first] = False
        return again

    def first_row(self, index: int) -> int:
        """The row at which ``index``, one of ``values``, stands first."""
        return int(self.first[np.searchsorted(self.values, index)])

    def where(self, row: int) -> str:
        """``rank 1, step 0, place 0``."""
        return f"rank {self.rank[row]}, step {self.step[row]}, place {self.place[row]}"


def together(ledgers: Sequence[RankLedger]) -> Deliveries:
    """The deliveries of all ranks; ``ledgers`` is by rank, each with its epoch alone."""
    located = [places(ledger.ends) for ledger in ledgers]
    step = _joined([step for step, _ in located])
    # Ranks come one after another, so a stable sort by step leaves rank and place in order.
    by_step = np.argsort(step, kind="stable")
    index = _joined([ledger.indices for ledger in ledgers])[by_step]
    values, first = np.unique(index, return_index=True)
    words = [ledger.words for ledger in ledgers if ledger.words is not None]
    return Deliveries(
        rank=np.repeat(np.arange(len(ledgers)), [len(ledger.indices) for ledger in ledgers])[by_step],
        step=step[by_step],
        place=_joined([place for _, place in located])[by_step],
        index=index,
        word=np.concatenate(words)[by_step] if len(words) == len(ledgers) > 0 else None,
        steps=np.array([ledger.steps for ledger in ledgers], dtype=np.int64),
        values=values,
        first=first,
    )


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

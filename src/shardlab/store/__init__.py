"""Where the bytes live: one file per ``--store``. A store's ``open(share)`` gives a rank its dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.store._counted import (
    Counted,
    CountedStream,
    Counter,
    Indexed,
    IndexedCollate,
    IndexedStream,
    NoCounter,
    ReadCounter,
    difference,
    refuse_other_lengths,
)
from shardlab.store._share import NodeShare, StoreNote, warm_ratio

__all__ = [
    "Counter",
    "IndexedCollate",
    "NoCounter",
    "NodeShare",
    "ReadCounter",
    "Store",
    "StoreNote",
    "difference",
    "refuse_other_lengths",
    "warm_ratio",
]


@dataclass(frozen=True)
class Store:
    """What a data path reads from: the same dataset in two views, both of which count reads.

    ``dataset[i]`` is a sample; ``indexed[i]`` is ``(sample, i)``, so that a DataLoader over it with
    ``collate_fn`` yields ``(batch, indices)``. ``raw`` is the object itself, whose reads nobody counts.
    """

    raw: Any
    counter: Counter
    iterable: bool = False

    @property
    def dataset(self) -> Any:
        """Samples."""
        return (CountedStream if self.iterable else Counted)(self.raw, self.counter)

    @property
    def indexed(self) -> Any:
        """``(sample, index)`` pairs."""
        return (IndexedStream if self.iterable else Indexed)(self.raw, self.counter)

    @property
    def collate_fn(self) -> IndexedCollate:
        """Collates ``indexed`` items, by the dataset's own ``collate_fn`` where it has one."""
        own = getattr(self.raw, "collate_fn", None)
        return IndexedCollate(own) if own is not None else IndexedCollate()

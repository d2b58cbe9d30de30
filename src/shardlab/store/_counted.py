"""Reads counted where they happen, and each sample kept together with its index."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from shardlab.dataset import Tree, describe_sample
from shardlab.errors import RunFailed

MOST_WORKERS = 511  # slots of a counter file, less the rank's own; one page


class ReadCounter:
    """Samples fetched from the dataset, by worker, in a file that outlives the workers.

    Slot 0 is the rank itself, slot k + 1 its worker k. Goes to worker processes by path.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        try:
            os.ftruncate(fd, 8 * (MOST_WORKERS + 1))
            self._slots = memoryview(mmap.mmap(fd, 8 * (MOST_WORKERS + 1))).cast("q")
        finally:
            os.close(fd)

    def add(self, reads: int) -> None:
        """Count ``reads`` for whoever runs this: the rank or one of its workers."""
        worker = get_worker_info()
        self.add_for(None if worker is None else worker.id, reads)

    def add_for(self, worker: int | None, reads: int) -> None:
        """Count ``reads`` for a worker, or for the rank itself (None). Each process needs a number of its own."""
        self._slots[0 if worker is None else min(worker, MOST_WORKERS - 1) + 1] += reads

    def by_worker(self) -> list[int]:
        """Reads of the rank itself, then of its workers 0, 1, ..., up to the last that read at all."""
        counts = self._slots.tolist()
        while len(counts) > 1 and counts[-1] == 0:
            counts.pop()
        return counts

    def total(self) -> int:
        """All reads so far."""
        return sum(self._slots)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.path,)


def _reopened(path: Path) -> ReadCounter:
    """The counter in a worker process. Where the run has ended while the worker started, this ends it too."""
    try:
        return ReadCounter(path, create=False)
    except FileNotFoundError:
        raise SystemExit(1) from None


class NoCounter:
    """Stands where a profiled run counts: a training script of a user's own does not."""

    def add(self, reads: int) -> None:
        """Nothing."""

    def add_for(self, worker: int | None, reads: int) -> None:
        """Nothing."""

    def by_worker(self) -> list[int]:
        """Nobody was counted."""
        return []

    def total(self) -> int:
        """No reads were counted."""
        return 0


Counter = ReadCounter | NoCounter


class Counted(Dataset[Any]):
    """The dataset itself, each read counted."""

    def __init__(self, dataset: Any, counter: Counter) -> None:
        self.dataset = dataset
        self.counter = counter
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._getitems

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        self.counter.add(1)
        return self.dataset[index]

    def _getitems(self, indices: Sequence[int]) -> Sequence[Any]:
        self.counter.add(len(indices))
        return self.dataset.__getitems__(indices)  # type: ignore[no-any-return]


def refuse_other_lengths(samples: Sequence[Any], indices: Sequence[int]) -> None:
    """Raise where a dataset left samples out or put some in: nobody knows any more which is which."""
    if len(samples) != len(indices):
        raise RunFailed(
            f"the dataset's __getitems__ must give a sample for each index, but gave {len(samples)} for "
            f"{len(indices)}"
        )


class Pairs(Sequence[tuple[Any, int]]):
    """Samples with their indices, kept apart: a collate function that knows need not take them apart again."""

    def __init__(self, samples: Sequence[Any], indices: Sequence[int]) -> None:
        refuse_other_lengths(samples, indices)
        self.samples, self.indices = samples, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, place: int) -> tuple[Any, int]: ...
    @overload
    def __getitem__(self, place: slice) -> Pairs: ...
    def __getitem__(self, place: int | slice) -> tuple[Any, int] | Pairs:
        if isinstance(place, slice):
            return Pairs(self.samples[place], self.indices[place])
        return self.samples[place], self.indices[place]


class Indexed(Counted):
    """As :class:`Counted`; an item is ``(sample, index)``, so that a batch arrives with its indices."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.counter.add(1)
        return self.dataset[index], index

    def _getitems(self, indices: Sequence[int]) -> Pairs:
        self.counter.add(len(indices))
        return Pairs(self.dataset.__getitems__(indices), indices)


class CountedStream(IterableDataset[Any]):
    """An iterable dataset, each sample counted as it comes."""

    def __init__(self, dataset: Any, counter: Counter) -> None:
        self.dataset = dataset
        self.counter = counter

    def __iter__(self) -> Iterator[Any]:
        for sample in self.dataset:
            self.counter.add(1)
            yield sample

    def set_epoch(self, epoch: int) -> None:
        """Handed on where the dataset has an epoch."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)


class IndexedStream(CountedStream):
    """As :class:`CountedStream`; the index is the sample's place in the stream of the process that reads."""

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        for place, sample in enumerate(self.dataset):
            self.counter.add(1)
            yield sample, place


class IndexedCollate:
    """Collates ``(sample, index)`` items to ``(batch, indices)``, indices being int64 of shape (batch,)."""

    def __init__(self, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self.collate = collate

    def __call__(self, items: Sequence[tuple[Any, int]]) -> tuple[Any, torch.Tensor]:
        samples, indices = (
            (items.samples, items.indices) if isinstance(items, Pairs) else zip(*items, strict=True)
        )
        try:
            batch = self.collate(list(samples))
        except Exception as error:
            if self.collate is not default_collate:
                raise  # the user's own, which may well take samples that differ
            trees = [describe_sample(sample) for sample in samples]
            differ = difference(trees, [f"index {index}" for index in indices], "sample")
            if differ:
                raise RunFailed(
                    f"samples of a batch must have one structure, but {differ}. "
                    "Cure: pad or crop them in the dataset"
                ) from error
            raise
        return batch, torch.tensor(indices, dtype=torch.int64)


def difference(trees: Sequence[Tree], places: Sequence[str], field: str) -> str:
    """The first field in which samples or batches differ, and how; empty where they do not.

    >>> shapes = [{"kind": "tensor", "dtype": "float32", "shape": [n]} for n in (45, 47)]
    >>> difference(shapes, ["index 44", "index 46"], "sample['tokens']")
    "sample['tokens'] is float32 [45] at index 44 and float32 [47] at index 46"
    """
    first = trees[0]
    for tree, place in zip(trees, places, strict=True):
        if _outline(tree) != _outline(first):
            return f"{field} is {_outline(first)} at {places[0]} and {_outline(tree)} at {place}"
    for item, key in enumerate(first.get("keys", range(len(first.get("items", ()))))):
        differ = difference([tree["items"][item] for tree in trees], places, f"{field}[{key!r}]")
        if differ:
            return differ
    return ""


def _outline(tree: Tree) -> str:
    """Kind of a field, without what lies inside it."""
    if "dtype" in tree:
        return f"{tree['dtype']} {tree['shape']}"
    if "keys" in tree:
        return f"a dict of {tree['keys']}"
    if "items" in tree:
        return f"a {tree['kind']} of {len(tree['items'])}"
    return str(tree.get("type", tree["kind"]))

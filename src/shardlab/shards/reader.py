"""A folder of shards as a dataset whose samples are views of mapped files."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from shardlab.dataset._arrays import ArrayDataset, ArrayTree, row_of
from shardlab.errors import RunFailed
from shardlab.shards._file import map_fields
from shardlab.shards.manifest import Manifest, ShardEntry, check_size, load

Identity = tuple[int, int, int, int]

_verified: set[tuple[Identity, str]] = set()  # files that this process has hashed, as they were then


class ShardedArrays(Dataset[Any]):
    """Samples [start, stop) of the folder, numbered from 0; a shard is opened when its first sample is read.

    ::

        shards           |--- 0 ---|--- 1 ---|--- 2 ---|-1-|
        part(5, 12)           |---------|                      opens 0 and 1

    Samples are tensors over private, writable maps: nothing is read but the pages that are touched, and a
    write changes this process's copy of a page alone. Each shard's checksum is verified once per process,
    before its first sample is served; ``verify=False`` leaves that out. Goes to worker processes by path.

    Raises RunFailed naming the shard where it is missing, truncated, replaced or damaged.
    """

    def __init__(
        self, folder: str | Path, verify: bool = True, start: int = 0, stop: int | None = None
    ) -> None:
        self.folder = Path(folder).resolve()
        self.verify = verify
        self.manifest = load(self.folder)
        self.start, self.stop, _ = slice(start, stop).indices(self.manifest.samples)
        self.stop = max(self.start, self.stop)
        self._ends = list(accumulate(shard.samples for shard in self.manifest.shards))
        self._open: dict[int, ArrayTree] = {}

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.stop - self.start:
            raise IndexError(index)
        place = self.start + index
        number = bisect_right(self._ends, place)
        tree = self._open.get(number)
        if tree is None:
            tree = self._shard(number)
        return row_of(tree, place - self._begin(number))

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardedArrays, (self.folder, self.verify, self.start, self.stop)

    def part(self, start: int, stop: int) -> ShardedArrays:
        """The samples [start, stop) of the whole folder, whatever part this one is."""
        return ShardedArrays(self.folder, self.verify, start, stop)

    def files_for(self, start: int, stop: int) -> tuple[str, ...]:
        """Paths of the shards that hold samples [start, stop) of the whole folder."""
        return tuple(str(self.folder / self.manifest.shards[k].file) for k in self._numbers(start, stop))

    def pieces(self) -> Iterator[ArrayTree]:
        """The samples as one tree of tensors per shard, in order; their lengths add up to ``len(self)``."""
        for number in self._numbers(self.start, self.stop):
            begin = self._begin(number)
            rows = slice(max(self.start - begin, 0), self.stop - begin)
            yield _each(self._shard(number), lambda leaf, rows=rows: leaf[rows])

    def in_memory(self) -> ArrayDataset:
        """A copy of the samples in this process's memory; the files are unmapped again."""
        tree = _empty_tree(self.manifest, len(self))
        filled = 0
        for piece in self.pieces():
            for target, source in zip(ArrayDataset(tree).leaves, ArrayDataset(piece).leaves, strict=True):
                target[filled : filled + len(source)].copy_(source)
            filled += len(ArrayDataset(piece))
            self._open.clear()
        return ArrayDataset(tree)

    def _numbers(self, start: int, stop: int) -> Iterator[int]:
        return (k for k, end in enumerate(self._ends) if max(start, self._begin(k)) < min(stop, end))

    def _begin(self, number: int) -> int:
        return self._ends[number] - self.manifest.shards[number].samples

    def _shard(self, number: int) -> ArrayTree:
        if number not in self._open:
            entry = self.manifest.shards[number]
            self._open[number] = _tree(self.manifest, _map(self.folder / entry.file, entry, self))
        return self._open[number]


def _map(path: Path, entry: ShardEntry, dataset: ShardedArrays) -> list[torch.Tensor]:
    """The fields of a shard, checked, each of shape (samples of the shard, *shape)."""
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        check_size(path, status.st_mode, status.st_size, entry.bytes)
        key = ((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), entry.sha256)
        if dataset.verify and key not in _verified:
            # read, not mapped: pages hashed through a map would count as this process's
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                raise RunFailed(
                    f"shard {path} is damaged: its SHA-256 is not the manifest's. "
                    "Cure: copy it again, or write the folder anew"
                )
            _verified.add(key)
        return map_fields(file, path, dataset.manifest.fields, entry.samples)


def _opened(path: Path) -> BufferedReader:
    try:
        return open(path, "rb")
    except OSError as error:
        raise RunFailed(f"shard {path} cannot be opened: {error.strerror}") from None


def _empty_tree(manifest: Manifest, samples: int) -> ArrayTree:
    """Tensors for ``samples`` samples, content undefined."""
    fields = manifest.fields
    return _tree(manifest, [torch.empty((samples, *f.shape), dtype=getattr(torch, f.dtype)) for f in fields])


def _tree(manifest: Manifest, leaves: list[torch.Tensor]) -> ArrayTree:
    if manifest.structure == "tensor":
        return leaves[0]
    if manifest.structure == "tuple":
        return tuple(leaves)
    return {field.name: leaf for field, leaf in zip(manifest.fields, leaves, strict=True)}


def _each(tree: ArrayTree, change: Any) -> ArrayTree:
    if isinstance(tree, torch.Tensor):
        return change(tree)  # type: ignore[no-any-return]
    if isinstance(tree, dict):
        return {name: change(leaf) for name, leaf in tree.items()}
    return tuple(change(leaf) for leaf in tree)

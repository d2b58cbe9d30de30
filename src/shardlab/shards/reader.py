"""A folder of shards as a dataset whose samples are views of mapped files."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from shardlab.errors import RunFailed, UsageError
from shardlab.shards._columns import Collate, Column, Columns, assemble, cut, joined
from shardlab.shards._file import map_fields
from shardlab.shards.manifest import Field, ShardEntry, check_size, load

Tree = torch.Tensor | tuple[torch.Tensor, ...] | dict[str, torch.Tensor]
Identity = tuple[int, int, int, int]

_verified: set[tuple[Identity, str]] = set()  # files that this process has hashed, as they were then


class ShardedArrays(Dataset[Any]):
    """Samples [start, stop) of the folder, numbered from 0; a shard is opened when its first sample is read.

    ::

        samples      0       4       8      12
        shards       |---0---|---1---|---2---|
        part(3, 7)         |-------|            opens 0 and 1

    Tensors are over private, writable maps: nothing is read but the pages that are touched, and a write changes
    this process's copy of a page alone. Text and bytes come as ``str`` and ``bytes``. Where tensors of a field
    differ in shape, ``collate_fn`` makes a list of them. Each shard's checksum is verified once per process,
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
        self._open: dict[int, list[Column]] = {}
        if any(field.kind == "varies" for field in self.manifest.fields):
            self.collate_fn = Collate(self.manifest.structure, self.manifest.fields)

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.stop - self.start:
            raise IndexError(index)
        place = self.start + index
        number = bisect_right(self._ends, place)
        row = place - self._begin(number)
        return self._assembled([column[row] for column in self._columns(number)])

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardedArrays, (self.folder, self.verify, self.start, self.stop)

    def part(self, start: int, stop: int) -> ShardedArrays:
        """The samples [start, stop) of the whole folder, whatever part this one is."""
        return ShardedArrays(self.folder, self.verify, start, stop)

    def files_for(self, start: int, stop: int) -> tuple[str, ...]:
        """Paths of the shards that hold samples [start, stop) of the whole folder."""
        return tuple(str(self.folder / self.manifest.shards[k].file) for k in self._numbers(start, stop))

    def in_memory(self) -> Tree:
        """A copy of all samples in this process's memory, as a tree of tensors of shape (len(self), *shape).

        A shard is unmapped again when it is copied. For samples of one shape; see :meth:`columns`.
        """
        fields = self.manifest.fields
        if not self.manifest.is_fixed:
            raise UsageError("samples as a tree of tensors must have one shape", str(self.folder))
        whole = [torch.empty((len(self), *f.shape), dtype=getattr(torch, f.dtype)) for f in fields]
        for number in self._numbers(self.start, self.stop):
            begin, end = self._begin(number), self._ends[number]
            first, last = max(self.start, begin), min(self.stop, end)
            for target, column in zip(whole, self._columns(number), strict=True):
                assert isinstance(column, torch.Tensor)
                target[first - self.start : last - self.start] = column[first - begin : last - begin]
            del self._open[number]
        return self._assembled(whole)  # type: ignore[no-any-return]

    def columns(self) -> Columns:
        """A copy of all samples in this process's memory, of whatever lengths."""
        kept: list[list[Column]] = [[] for _ in self.manifest.fields]
        for number in self._numbers(self.start, self.stop):
            begin, end = self._begin(number), self._ends[number]
            first, last = max(self.start, begin) - begin, min(self.stop, end) - begin
            for parts, column in zip(kept, self._columns(number), strict=True):
                parts.append(cut(column, first, last))
            del self._open[number]
        fields = self.manifest.fields
        whole = [joined(parts, field) for parts, field in zip(kept, fields, strict=True)]
        return Columns(whole, self.manifest.structure, fields)

    def _numbers(self, start: int, stop: int) -> Iterator[int]:
        return (k for k, end in enumerate(self._ends) if max(start, self._begin(k)) < min(stop, end))

    def _begin(self, number: int) -> int:
        return self._ends[number] - self.manifest.shards[number].samples

    def _columns(self, number: int) -> list[Column]:
        """The fields of a shard, one row for each of its samples."""
        entry = self.manifest.shards[number]
        path = self.folder / entry.file
        if number in self._open:
            _refuse_a_cut_file(path, entry)
        else:
            self._open[number] = _map(path, entry, self.manifest.fields, self.verify)
        return self._open[number]

    def _assembled(self, values: list[Any]) -> Any:
        return assemble(values, self.manifest.structure, self.manifest.fields)


def _map(path: Path, entry: ShardEntry, fields: tuple[Field, ...], verify: bool) -> list[Column]:
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        check_size(path, status.st_mode, status.st_size, entry.bytes)
        key = ((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), entry.sha256)
        if verify and key not in _verified:
            # read, not mapped: pages hashed through a map would count as this process's
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                raise RunFailed(
                    f"shard {path} is damaged: its SHA-256 is not the manifest's. "
                    "Cure: copy it again, or write the folder anew"
                )
            _verified.add(key)
        return map_fields(file, path, fields, entry.samples)


def _refuse_a_cut_file(path: Path, entry: ShardEntry) -> None:
    """Touching a page of a map behind the end of its file is a bus error, so the size is looked at each time.

    That leaves the moment between this look and the touch. A file that was removed keeps its pages.
    """
    with suppress(FileNotFoundError):
        status = os.stat(path)
        check_size(path, status.st_mode, status.st_size, entry.bytes)


def _opened(path: Path) -> BufferedReader:
    try:
        return open(path, "rb")
    except OSError as error:
        raise RunFailed(f"shard {path} cannot be opened: {error.strerror}") from None

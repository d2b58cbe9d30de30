"""Which samples a rank was handed, step by step, in files that survive the rank.

Three files of little-endian 64-bit numbers, without a header::

    PATH          int64   every delivered index
    PATH.ends     int64   for each step, 1 + the number of samples delivered after it
    PATH.words    uint64  for each sample, the first 8 bytes of its content; only where content is kept

While a rank runs, each file is larger than what is written and ends in zeros. A step counts when its entry in
``.ends`` is there, and that entry is written last. It is one more than the number of samples, so zero means
"not written" even where the first batch is empty. The kernel keeps the pages of a killed process, so a reader
finds every step but at most the one being written.
"""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardlab.errors import RunFailed, UsageError

_ITEM_BYTES = 8
_INT64 = np.dtype(np.int64)
_POPULATED_BYTES = 64 << 20
_FIRST_STEPS = 4096


@dataclass(frozen=True)
class RankLedger:
    """What one rank was handed: ``indices`` int64[delivered], ``ends`` int64[steps], ``words``.

    ``ends[s]`` is the number of samples delivered after step ``s``; ``words`` is uint64[delivered] or None.
    """

    indices: NDArray[np.int64]
    ends: NDArray[np.int64]
    words: NDArray[np.uint64] | None = None

    @property
    def steps(self) -> int:
        """Number of batches, empty ones too."""
        return len(self.ends)

    def between(self, first: int, stop: int) -> RankLedger:
        """The steps ``first`` to ``stop - 1`` alone, counted from 0: one epoch of several."""
        before, ends = self.ends[:first], self.ends[first:stop]
        start = int(before[-1]) if len(before) else 0
        part = slice(start, int(ends[-1]) if len(ends) else start)
        return RankLedger(self.indices[part], ends - start, None if self.words is None else self.words[part])


class Ledger:
    """Writes the ledger of one rank: one assignment into mapped memory for each batch."""

    def __init__(self, indices: _Column, ends: _Column, words: _Column | None) -> None:
        self._indices = indices
        self._ends = ends
        self._words = words
        self._delivered = 0
        self._steps = 0

    @classmethod
    def create(cls, path: Path, capacity: int, words: bool = False) -> Ledger:
        """Make the files of ``path``, with room for ``capacity`` samples; they grow when it is exceeded.

        What an earlier ledger left there is replaced. Raises RunFailed where the disk has no room.
        """
        words_path(path).unlink(missing_ok=True)
        return cls(
            _Column(path, np.dtype("<i8"), capacity),
            _Column(ends_path(path), np.dtype("<i8"), _FIRST_STEPS),
            _Column(words_path(path), np.dtype("<u8"), capacity) if words else None,
        )

    def write(self, indices: ArrayLike, word: ArrayLike | None = None) -> None:
        """Append one step. ``indices``: int[m], in the batch's order; ``word``: uint64[m], if words are kept.

        Raises UsageError where indices are not whole numbers, or words are missing, unasked or not as many.
        """
        batch: NDArray[Any] = indices if _is_plain(indices) else _whole_numbers(indices)
        start = self._delivered
        end = start + batch.shape[0]
        if end > self._indices.size:
            self._indices.reserve(end)
        self._indices.array[start:end] = batch
        if self._words is not None or word is not None:
            self._write_words(start, end, word)
        if self._steps == self._ends.size:
            self._ends.reserve(self._steps + 1)
        self._ends.cells[self._steps] = end + 1
        self._steps += 1
        self._delivered = end

    def close(self) -> None:
        """Cut the files to what was written. Closing again does nothing."""
        self._indices.close(self._delivered)
        self._ends.close(self._steps)
        if self._words is not None:
            self._words.close(self._delivered)

    def _write_words(self, start: int, end: int, word: ArrayLike | None) -> None:
        given = None if word is None else np.asarray(word, dtype=np.uint64)
        if self._words is None or given is None or given.shape != (end - start,):
            kept = "one content word for each sample" if self._words is not None else "no content words"
            raise UsageError(f"this ledger takes {kept}", "none" if given is None else f"shape {given.shape}")
        self._words.reserve(end)
        self._words.array[start:end] = given


class _Column:
    """One growing array of 8-byte numbers in a mapped file; ``cells`` is the same memory for single numbers."""

    array: NDArray[Any]
    cells: memoryview
    size: int

    def __init__(self, path: Path, dtype: np.dtype[Any], capacity: int) -> None:
        self._path = path
        self._dtype = dtype
        self._file = path.open("w+b")
        try:
            self._map(max(capacity, 1))
        except RunFailed:
            self._file.close()
            path.unlink()
            raise

    def reserve(self, length: int) -> None:
        """Make room for ``length`` numbers, by doubling."""
        if length > self.size:
            self._map(max(length, 2 * self.size))

    def close(self, length: int) -> None:
        """Unmap and cut the file to ``length`` numbers."""
        if not self._file.closed:
            self.array, self.cells = np.empty(0, self._dtype), memoryview(b"")
            self._file.truncate(length * _ITEM_BYTES)
            self._file.close()

    def _map(self, capacity: int) -> None:
        _allocate(self._path, self._file.fileno(), capacity * _ITEM_BYTES)
        nbytes = capacity * _ITEM_BYTES
        # A first write to a page of a file costs microseconds: small maps take that before the epoch starts.
        ready = getattr(mmap, "MAP_POPULATE", 0) if nbytes <= _POPULATED_BYTES else 0
        mapped = mmap.mmap(self._file.fileno(), nbytes, flags=mmap.MAP_SHARED | ready)
        self.array = np.frombuffer(mapped, self._dtype)  # owns the map: the one before goes with its array
        self.cells = memoryview(mapped).cast("Q" if self._dtype.kind == "u" else "q")
        self.size = capacity


def _is_plain(indices: object) -> TypeGuard[NDArray[np.int64]]:
    """The usual case, told apart at the cost of a few comparisons."""
    return type(indices) is np.ndarray and indices.dtype is _INT64 and indices.ndim == 1


def _whole_numbers(indices: ArrayLike) -> NDArray[Any]:
    batch = np.asarray(indices)
    if batch.ndim != 1 or (batch.dtype.kind not in "iu" and batch.size):
        raise UsageError(
            "a data path must give one whole number for each sample of a batch",
            f"{batch.dtype} of shape {batch.shape}",
        )
    return batch


def ends_path(path: Path) -> Path:
    """The file of the steps that belongs to the ledger ``path``."""
    return path.with_name(path.name + ".ends")


def words_path(path: Path) -> Path:
    """The file of the content words that belongs to the ledger ``path``."""
    return path.with_name(path.name + ".words")


def read(path: Path) -> RankLedger:
    """A rank's ledger, closed or left by a rank that died.

    Raises FileNotFoundError where it does not exist, RunFailed where its files do not fit together.
    """
    stored = np.fromfile(ends_path(path), "<i8")
    unwritten = np.flatnonzero(stored == 0)
    ends = stored[: unwritten[0] if len(unwritten) else len(stored)] - 1
    if len(ends) and (ends[0] < 0 or np.any(np.diff(ends) < 0)):
        raise RunFailed(f"{ends_path(path)} is damaged: its counts must not fall")
    delivered = int(ends[-1]) if len(ends) else 0
    kept = words_path(path)
    return RankLedger(
        indices=_read_column(path, np.dtype("<i8"), delivered),
        ends=ends,
        words=_read_column(kept, np.dtype("<u8"), delivered) if kept.exists() else None,
    )


def _read_column(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    column = np.fromfile(path, dtype, count=length)
    if len(column) < length:
        raise RunFailed(f"{path} is damaged: {length} entries were counted, {len(column)} are there")
    return column


def _allocate(path: Path, descriptor: int, size: int) -> None:
    # Blocks, not only a length: on a full disk a write to a sparse mapped file ends the process by SIGBUS.
    try:
        if sys.platform == "linux":
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        raise RunFailed(f"the ledger needs {size} bytes at {path}: {error.strerror}") from error

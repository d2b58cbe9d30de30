"""The bytes of another process's pages, hashed as they come; nothing of them is kept.

``process_vm_readv`` delays the process less than ``/proc/PID/mem`` does, which is the way where it is refused, and
for pages that processes share by fork: the former pins what it reads, and Linux since 5.19 copies such a page before
it pins it. To read the memory of four forked workers that way is to make four copies of it.
Source: https://github.com/torvalds/linux/commit/a7f226604170acd6b142b76472c1a49c12ebb83d
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardlab.measure.census.pages import Words
from shardlab.measure.procfs import PROC

BLOCK_BYTES = 1 << 20
"""Read at once: below 256 KiB the calls cost more than the bytes, above the cache loses what is to be hashed."""

OBJECTS_EVERY = 32
"""One page in so many is looked at for pointers."""

POINTERS_RATIO = 0.02
"""Pages with more pointers than this, of all words, hold objects: a str of 100 characters is one in 19 words, and
numbers look like one once in 20,000."""

_MOST_RUNS = 1024  # IOV_MAX
_TOPS = np.zeros(257, bool)
_TOPS[[0x7F, 0x7E, 0x55, 0x56, 0xFF, 0xAA]] = True  # x86-64, and the last two aarch64
_LIBC = ctypes.CDLL(None, use_errno=True)


class Reader:
    """Reads pages of one process into one buffer. Close it, or use it as a context."""

    def __init__(self, pid: int, page: int, root: Path = PROC) -> None:
        self.pid, self.page, self.read_bytes = pid, page, 0
        self._root = root
        self._buffer = bytearray(max(BLOCK_BYTES, page))
        self._view = memoryview(self._buffer)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._mem: int | None = None
        self._refused = not hasattr(_LIBC, "process_vm_readv") or root != PROC

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._mem is not None:
            os.close(self._mem)

    def hashes(self, pages: Words, *, by_fork: bool = False) -> tuple[Words, Words, NDArray[np.int8]]:
        """Those of ``pages`` (numbers, ascending) that could be read, the XXH3 of each, and whether it holds objects.

        The last is 1 or 0 for one page in OBJECTS_EVERY and -1 for those that were not looked at. ``by_fork`` says
        that other processes may share them by a fork. A page that went away meanwhile is left out. Raises
        ProcessLookupError where the process did, and PermissionError where its memory may not be read.
        """
        kept: list[Words] = [pages[:0]]
        found: list[int] = []
        objects: list[NDArray[np.int8]] = [np.zeros(0, np.int8)]
        for block in _blocks(pages, len(self._buffer) // self.page):
            while block.size:
                count = self._fill(block, by_fork)
                found += self._hash(count)
                objects.append(self._objects(count))
                kept.append(block[:count])
                block = block[count + 1 :] if count < block.size else block[:0]
        return np.concatenate(kept), np.array(found, np.uint64), np.concatenate(objects)

    def read(self, pages: Words) -> int:
        """Read the pages and do nothing with them. Returns bytes."""
        before = self.read_bytes
        for block in _blocks(pages, len(self._buffer) // self.page):
            self._fill(block, by_fork=False)
        return self.read_bytes - before

    def pieces(self, pages: Words, offset: int, size: int = 64, *, by_fork: bool = False) -> Words:
        """XXH3 of ``size`` bytes at ``offset`` within each page, 0 for zeros and for what cannot be read."""
        zero = xxhash.xxh3_64_intdigest(bytes(size))
        found = np.zeros(pages.size, np.uint64)
        for first in range(0, pages.size, _MOST_RUNS):
            block = pages[first : first + _MOST_RUNS]
            starts = block * np.uint64(self.page) + np.uint64(offset)
            runs = np.stack([starts, np.full_like(starts, size)], axis=1)
            count = self._read(runs, by_fork) // size
            digests = (xxhash.xxh3_64_intdigest(self._view[i * size : (i + 1) * size]) for i in range(count))
            found[first : first + count] = np.fromiter(digests, np.uint64, count)
        found[found == zero] = 0
        return found

    def _hash(self, count: int) -> Iterator[int]:
        digest, view, page = xxhash.xxh3_64_intdigest, self._view, self.page
        return (digest(view[at : at + page]) for at in range(0, count * page, page))

    def _objects(self, count: int) -> NDArray[np.int8]:
        words = np.frombuffer(self._buffer, np.uint64, count * self.page // 8).reshape(count, self.page // 8)
        words = words[::OBJECTS_EVERY]
        # addresses of programs and of mappings on 64-bit Linux begin with these, and objects lie on 8 bytes
        top = words >> np.uint64(40)
        pointers = _TOPS[np.minimum(top, 256)] & (words & np.uint64(7) == 0)
        found = np.full(count, -1, np.int8)
        found[::OBJECTS_EVERY] = pointers.mean(axis=1) > POINTERS_RATIO
        return found

    def _fill(self, block: Words, by_fork: bool) -> int:
        """Read the pages of a block; how many of them came before one that could not be read."""
        count = self._read(_runs(block, self.page), by_fork)
        self.read_bytes += count
        return count // self.page

    def _read(self, runs: Words, by_fork: bool) -> int:
        """Fill the buffer with these runs (start, length); how many bytes came before one that could not be read."""
        count = 0 if self._refused or by_fork else self._vm_read(runs)
        if count < 0:
            number = ctypes.get_errno()
            if number == errno.ESRCH:
                raise ProcessLookupError(number, os.strerror(number))
            self._refused = number in (errno.EPERM, errno.ENOSYS)
            count = 0
        return self._read_mem(runs) if self._refused or by_fork else count

    def _vm_read(self, runs: Words) -> int:
        local = np.array([[self._address, int(runs[:, 1].sum())]], np.uint64)
        count: int = _LIBC.process_vm_readv(
            self.pid, ctypes.c_void_p(local.ctypes.data), ctypes.c_ulong(1),
            ctypes.c_void_p(runs.ctypes.data), ctypes.c_ulong(len(runs)), ctypes.c_ulong(0),
        )  # fmt: skip
        return count

    def _read_mem(self, runs: Words) -> int:
        if self._mem is None:
            self._mem = os.open(f"{self._root}/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        filled = 0
        for start, size in runs.tolist():
            count = 0
            with suppress(OSError):  # EIO: the page went away
                count = os.preadv(self._mem, [self._view[filled : filled + size]], start)
            filled += count
            if count < size:
                break
        return filled


def zero_hash(page: int) -> np.uint64:
    """The hash of a page of zeros."""
    return np.uint64(xxhash.xxh3_64_intdigest(bytes(page)))


def _blocks(pages: Words, most: int) -> Iterator[Words]:
    """Cut into blocks of at most ``most`` pages in at most as many runs as one call takes."""
    for first in range(0, pages.size, most):
        block = pages[first : first + most]
        breaks = np.flatnonzero(np.diff(block) != 1)
        while breaks.size >= _MOST_RUNS:
            cut = int(breaks[_MOST_RUNS - 1]) + 1
            yield block[:cut]
            block = block[cut:]
            breaks = np.flatnonzero(np.diff(block) != 1)
        yield block


def _runs(block: Words, page: int) -> Words:
    """Start and length in bytes of each run of pages that follow each other."""
    # block: (pages,), ascending
    firsts = np.flatnonzero(np.concatenate([[True], np.diff(block) != 1]))
    lengths = np.diff(np.append(firsts, block.size))
    # (runs, 2)
    return np.stack([block[firsts] * np.uint64(page), lengths.astype(np.uint64) * np.uint64(page)], axis=1)

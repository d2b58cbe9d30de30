"""Memory that a process has freed and its allocator keeps: the free chunks of glibc's malloc, by its own lists.

They are in rings whose heads lie in the data of the C library, or in the first page of an arena of a thread. A head
is told by its ring alone, wherever a version of the library has it, and a chunk by its size, which is written at both
of its ends::

    head ----> chunk ----> chunk ----> head      forward (16 bytes in) and backward (24 bytes in)

The last chunk of an arena, its top, is in no ring; its address is where the first ring has its head.
Format: https://sourceware.org/glibc/wiki/MallocInternals
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardlab.measure import procfs
from shardlab.measure.census.pages import ARENA_BYTES, EXCLUSIVE, PRESENT, Mapping, mappings, whole_pages
from shardlab.measure.procfs import PROC
from shardlab.watching.facts import Member

MOST_CHUNKS = 20_000
"""Of a ring: some 0.1 s. A process that freed as many small pieces holds few whole pages free."""

_HEADER = 48  # what a free chunk needs for itself
_SIZE = ~7  # the lowest bits of a size are flags


@dataclass(frozen=True)
class Freed:
    """Whole pages of free chunks.

    ``pages`` has the first number of each run of them and the one after its last, in order; ``resident_bytes`` are
    those that are there, ``exclusive_bytes`` those that no other process maps.
    """

    pages: tuple[tuple[int, int], ...]
    resident_bytes: int
    exclusive_bytes: int

    def retained_bytes(self, start_method: str | None) -> int:
        """What the process keeps: of a copy of another process only what it does not share with that one."""
        return self.exclusive_bytes if start_method in ("fork", "forkserver") else self.resident_bytes


def of_members(members: Iterable[Member], root: Path = PROC) -> dict[int, Freed]:
    """By pid. A process whose allocator is another one, or that may not be read, is left out."""
    found = {}
    for member in members:
        with suppress(OSError):
            of = freed(member.pid, root)
            if of is not None:
                found[member.pid] = of
    return found


def freed(pid: int, root: Path = PROC) -> Freed | None:
    """Of one process, ``None`` where it does not use glibc's malloc. Raises OSError where it may not be read."""
    chunks = free_chunks(pid, root)
    if chunks is None:
        return None
    page = os.sysconf("SC_PAGESIZE")
    pages = whole_pages(chunks)
    resident = exclusive = 0
    with open(f"{root}/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for first, last in pages:
            entries = np.frombuffer(os.pread(pagemap.fileno(), (last - first) * 8, first * 8), np.uint64)
            there = entries & PRESENT != 0
            resident += int(there.sum()) * page
            exclusive += int((there & (entries & EXCLUSIVE != 0)).sum()) * page
    return Freed(pages, resident, exclusive)


def free_chunks(pid: int, root: Path = PROC) -> list[tuple[int, int]] | None:
    """First and last address of what is free in each chunk of a page or more, in order. Raises OSError."""
    found = [m for m in mappings(procfs.read(pid, "maps", root)) if "w" in m.permissions]
    ends = {mapping.end for mapping in found}
    chunks: set[tuple[int, int]] = set()
    known = False
    with open(f"{root}/{pid}/mem", "rb", buffering=0) as file:
        memory = _Memory(file.fileno())
        for start, end in _arenas(found):
            heads = _heads(memory, start, end)
            known = known or bool(heads)
            for head in heads:
                chunks.update(_ring(memory, head, is_sorted=head != heads[0]))
            chunks.update(_top(memory, heads[:1], ends))
    return _apart(chunks) if known else None


def _apart(chunks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, without those that begin within another: the process went on while its lists were read."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(chunks):
        if not found or start >= found[-1][1]:
            found.append((start, end))
    return found


class _Memory:
    """Words of a process; zeros where there are none."""

    def __init__(self, file: int) -> None:
        self._file = file

    def words(self, address: int, count: int) -> Sequence[int]:
        with suppress(OSError, OverflowError):
            data = os.pread(self._file, count * 8, address)
            if len(data) == count * 8:
                return struct.unpack(f"{count}Q", data)
        return (0,) * count

    def word(self, address: int) -> int:
        return self.words(address, 1)[0]


def _arenas(found: Sequence[Mapping]) -> Iterator[tuple[int, int]]:
    """Where the heads of rings may lie: variables of the C library, and the first page of what may be an arena."""
    library = [m for m in found if m.path.rpartition("/")[2].startswith(("libc.so", "libc-"))]
    yield from ((m.start, m.end) for m in library)
    for mapping in found:
        if not mapping.inode and mapping.start % ARENA_BYTES == 0:
            yield mapping.start, min(mapping.start + 4096, mapping.end)


def _heads(memory: _Memory, start: int, end: int) -> list[int]:
    """Addresses of the heads of rings, those of empty rings too; the free chunks of a ring are no heads."""
    words = np.array(memory.words(start, (end - start) // 8), np.uint64)
    forward, backward = words[:-1], words[1:]
    maybe = np.flatnonzero((forward > 1 << 16) & (backward > 1 << 16) & ((forward ^ backward) & np.uint64(7) == 0))
    found = []
    for at in maybe.tolist():
        head = start + at * 8 - 16
        if memory.word(int(forward[at]) + 24) == head == memory.word(int(backward[at]) + 16):
            found.append(head)
    return [head for head in found if _size(memory, head) == 0]


def _size(memory: _Memory, chunk: int) -> int:
    """Bytes of a free chunk; 0 where there is none, as its size is not found again at its end."""
    size = memory.word(chunk + 8) & _SIZE
    return size if size >= 32 and memory.word(chunk + size) == size else 0


def _ring(memory: _Memory, head: int, *, is_sorted: bool) -> Iterator[tuple[int, int]]:
    """The chunks of a ring that have a page or more, of which those of a sorted ring come first."""
    at = memory.word(head + 16)
    for _ in range(MOST_CHUNKS):
        size = 0 if at == head else _size(memory, at)
        if size >= 4096:
            yield at + _HEADER, at + size
        elif is_sorted or not size:  # not of the ring, where the process has changed it meanwhile
            return
        at = memory.word(at + 16)


def _top(memory: _Memory, heads: Sequence[int], ends: set[int]) -> Iterator[tuple[int, int]]:
    """The chunk at the end of an arena, up to where its mapping ends."""
    for head in heads:
        top = memory.word(head)
        size = memory.word(top + 8) & _SIZE
        if size and top + size in ends:
            yield top + _HEADER, top + size

"""Which pages of a process are resident, and which frame of memory each of them is.

A frame is named by a number: its frame number where the kernel tells it, and otherwise by what must be the same
for two processes that map the same frame, in any order of privilege::

    page of a file or of shared memory    device, inode and offset
    page that one process maps alone      that process and the address (bit 56 of pagemap)
    page that processes share by fork     their family and the address, which a fork does not change

Formats: https://www.kernel.org/doc/html/latest/admin-guide/mm/pagemap.html
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardlab.measure import procfs
from shardlab.measure.census.result import ARRAY, FILE, HEAP, IN_FLIGHT, SHARED
from shardlab.measure.procfs import PROC

Words = NDArray[np.uint64]

PRESENT, FILE_OR_SHARED, EXCLUSIVE = (np.uint64(1 << bit) for bit in (63, 61, 56))
FRAME_NUMBER = np.uint64((1 << 55) - 1)
ALONE, OF_FILE, FORKED = (np.uint64(1 << bit) for bit in (63, 62, 61))
"""Marks of the names that are no frame numbers."""

ARENA_BYTES = 64 << 20  # glibc aligns the heaps of threads so
_CHUNK_PAGES = 1 << 19  # of pagemap read at once: 4 MiB
_LINE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) (\S+) (\d+)[ \t]*(.*)$", re.MULTILINE)
TORCH_BATCH = re.compile(r"^/dev/shm/torch_(\d+)_")
_SHARED = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero")


class Mapping(NamedTuple):
    """A line of ``/proc/PID/maps``; ``device`` is ``major:minor`` in hexadecimal."""

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str


def mappings(text: str) -> list[Mapping]:
    """The mappings of ``maps`` (or of ``smaps``, whose other lines are passed over)."""
    return [
        Mapping(int(start, 16), int(end, 16), permissions, int(offset, 16), device, int(inode), path)
        for start, end, permissions, offset, device, inode, path in _LINE.findall(text)
    ]


def programs(found: Iterable[Mapping]) -> set[tuple[str, int]]:
    """Device and inode of the files that hold code: of these all mappings are the program's, not data."""
    return {(m.device, m.inode) for m in found if "x" in m.permissions and m.inode}


def kind_of(mapping: Mapping, code: Container[tuple[str, int]], workers: Container[int]) -> str | None:
    """What a mapping holds, as ``result.KINDS``; ``None`` for programs, devices and the kernel's own.

    torch names the memory in which it passes a batch, and a shared tensor as well, after the process that made
    it: what a worker made is a batch.
    """
    path = mapping.path
    if not mapping.inode:
        if path.startswith("[") and path != "[heap]" and not path.startswith("[anon"):
            return None
        return HEAP if path == "[heap]" or mapping.start % ARENA_BYTES == 0 else ARRAY
    if batch := TORCH_BATCH.match(path):
        return IN_FLIGHT if int(batch[1]) in workers else SHARED
    if path.startswith(_SHARED):
        return SHARED
    if (mapping.device, mapping.inode) in code or path.startswith("/dev/"):
        return None
    return FILE


def data_mappings(pid: int, workers: Container[int], root: Path = PROC) -> list[tuple[Mapping, str]]:
    """The readable mappings of a process that may hold data, each with its kind. Raises OSError."""
    found = without_bss(mappings(procfs.read(pid, "maps", root)), f"{root}/{pid}/root")
    code = programs(found)
    kinds = ((m, kind_of(m, code, workers)) for m in found if "r" in m.permissions)
    return [(mapping, kind) for mapping, kind in kinds if kind is not None]


def without_bss(found: Sequence[Mapping], file_root: str) -> list[Mapping]:
    """The mappings less what programs and libraries have of variables that begin as zeros.

    Such memory is anonymous, follows the library's own mapping, and may be large and alike in all processes
    (84 MiB for one library that torch loads), and the kernel may merge an array of the job with it.
    """
    code, kept = programs(found), list(found[:1])
    for before, mapping in pairwise(found):
        if not mapping.inode and mapping.start == before.end and (before.device, before.inode) in code:
            start = mapping.start + bss_bytes(f"{file_root}{before.path}")
            mapping = mapping._replace(start=min(start, mapping.end))
        kept.append(mapping)
    return kept


@cache
def bss_bytes(path: str) -> int:
    """Bytes, in whole pages, that an ELF file has mapped beyond what is in it; 0 where it cannot be read.

    Format: https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.pheader.html
    """
    page = os.sysconf("SC_PAGESIZE")
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
                return 0
            at, size, count = struct.unpack_from("<Q14xHH", head, 32)
            file.seek(at)
            table = file.read(size * count)
    except OSError:
        return 0
    most = 0
    for number in range(len(table) // size if size >= 56 else 0):
        kind, address, in_file, in_memory = struct.unpack_from("<I12xQ8xQQ", table, number * size)
        if kind == 1:  # PT_LOAD
            most = max(most, -(-(address + in_memory) // page) * page + -(address + in_file) // page * page)
    return most


def resident(pagemap: int, mapping: Mapping, page: int) -> Iterator[tuple[Words, Words]]:
    """Numbers and pagemap entries of the resident pages of a mapping, in chunks. Raises OSError.

    ``pagemap`` is an open file. Swapped pages are left out: to read them would bring them back.
    """
    for first in range(mapping.start // page, mapping.end // page, _CHUNK_PAGES):
        count = min(_CHUNK_PAGES, mapping.end // page - first)
        entries = np.frombuffer(os.pread(pagemap, count * 8, first * 8), np.uint64)
        there = np.flatnonzero(entries & PRESENT)
        if there.size:
            yield there.astype(np.uint64) + np.uint64(first), entries[there]


def whole_pages(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Runs of the pages (first, one after the last) that lie in these addresses [start, stop), in order and apart."""
    page = os.sysconf("SC_PAGESIZE")
    runs = sorted((-(-start // page), stop // page) for start, stop in spans)
    found: list[tuple[int, int]] = []
    for first, last in runs:
        first = max(first, found[-1][1]) if found else first
        if last > first:
            found.append((first, last))
    return tuple(found)


def outside(pages: Words, runs: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which of the pages are in none of the runs (first, one after the last), which are in order."""
    edges = np.array(runs, np.uint64).ravel()
    inside: NDArray[np.bool_] = np.searchsorted(edges, pages, side="right") % 2 == 1
    return ~inside


def shows_any(pagemap: int, pid: int, page: int, root: Path = PROC) -> bool:
    """Whether any page of a process is there. None is where a sandbox has a pagemap of zeros. Raises OSError."""
    found = mappings(procfs.read(pid, "maps", root))
    if not found:
        raise ProcessLookupError(f"{pid} has no memory any more")
    return any(True for mapping in found for _ in resident(pagemap, mapping, page))


def frames(
    pages: Words, entries: Words, mapping: Mapping, page: int, *, process: int, family: int, file: int
) -> Words:
    """The name of the frame behind each page; ``process``, ``family`` and ``file`` are small numbers of theirs.

    A page that a process maps alone is named by the process even where its frame number is known, so that
    such names are the greatest.
    """
    numbers = entries & FRAME_NUMBER
    of_file = (entries & FILE_OR_SHARED != 0) & (mapping.inode != 0)
    offsets = pages - np.uint64(mapping.start // page) + np.uint64(mapping.offset // page)
    named = np.where(numbers != 0, numbers, FORKED | np.uint64(family << 48) | pages)
    alone = entries & EXCLUSIVE != 0
    named = np.where(alone, ALONE | np.uint64(process << 48) | pages, named)
    return np.where(of_file, OF_FILE | np.uint64(file << 40) | offsets, named).astype(np.uint64)


def shared_ratios(smaps: str) -> dict[int, float]:
    """Of each mapping (by its start): the mean of 1 over the number of processes that map its shared pages.

    ::

        Rss: 1000 kB, Pss: 400 kB, Private_Dirty: 100 kB    (400 - 100) / (1000 - 100) = 1/3: three processes
    """
    found: dict[int, float] = {}
    start, sums = 0, dict.fromkeys(("Rss", "Pss", "Private_Clean", "Private_Dirty"), 0)
    for line in smaps.split("\n"):  # a file's name may hold what else ends a line
        name, _, rest = line.partition(":")
        if name in sums and rest.endswith(" kB"):
            sums[name] = int(rest.removesuffix("kB"))
            if name == "Private_Dirty":
                private = sums["Private_Clean"] + sums["Private_Dirty"]
                shared = sums["Rss"] - private
                if shared > 0:
                    found[start] = max(sums["Pss"] - private, 0) / shared
        elif match := _LINE.match(line):
            start = int(match[1], 16)
    return found

"""The census itself: read every process of a job once, and count.

Method and its traps: pages that are there are found in pagemap, read from outside, hashed by XXH3 and
counted by content, frame and process. A frame that several processes share is read once. Where a job has more pages
than ``most_pages``, only content whose piece hashes to a multiple of a number is read: the same choice in every
process, so that a content is counted with all its copies or not at all.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardlab.measure import procfs
from shardlab.measure.census import counting
from shardlab.measure.census.counting import Rows
from shardlab.measure.census.pages import (
    ALONE,
    FORKED,
    FRAME_NUMBER,
    OF_FILE,
    Words,
    data_mappings,
    frames,
    outside,
    resident,
    shared_ratios,
    shows_any,
)
from shardlab.measure.census.reading import Reader, zero_hash
from shardlab.measure.census.result import KINDS, Census, Subject
from shardlab.measure.census.seen import Seen
from shardlab.measure.procfs import PROC

MOST_PAGES = 6_000_000
"""Some 23 GiB of 4 KiB pages: their hashes and names take 0.4 GiB while they are counted."""

SLOWEST_BYTES_PER_S = 1e9
"""Read and hashed on one core of a busy machine; what the time limit is turned into pages by."""


def take(
    subjects: Sequence[Subject],
    *,
    t_s: float = 0.0,
    most_pages: int = MOST_PAGES,
    limit_s: float = 30.0,
    root: Path = PROC,
) -> Census:
    """Count the resident memory of ``subjects`` by content. Nothing of it is kept but hashes.

    A process that cannot be read, or that ends meanwhile, is in ``unreadable`` and the others are counted.
    """
    began, cpu_began = time.monotonic(), time.process_time()
    page = os.sysconf("SC_PAGESIZE")
    total = sum(_resident_pages(subject.pid, root) for subject in subjects)
    most = min(most_pages, round(limit_s * SLOWEST_BYTES_PER_S / page))
    taking = _Taking(subjects, page, every=max(1, math.ceil(total / max(most, 1))), root=root)
    unreadable: dict[int, str] = {}
    for place, subject in enumerate(subjects):
        if time.monotonic() - began > 2 * limit_s:
            unreadable[subject.pid] = f"the census had taken {2 * limit_s:g} s by then"
            continue
        try:
            taking.read(place, subject)
        except (ProcessLookupError, FileNotFoundError):
            lives, told = (os.path.exists(f"{root}/{subject.pid}/{name}") for name in ("maps", "pagemap"))
            ended = told or not lives
            unreadable[subject.pid] = "it ended during the census" if ended else "this kernel has no pagemap"
        except OSError as error:
            unreadable[subject.pid] = f"its memory may not be read: {error.strerror or error}"
    found = counting.counted(taking.rows(), [s.pid for s in subjects], page, taking.every)
    return Census(
        t_s=t_s,
        processes=len(subjects) - len(unreadable),
        duplicate_bytes=found.duplicate_bytes,
        error_bytes=round(1.96 * math.sqrt(found.squares * taking.every * (taking.every - 1)) * page),
        bytes_by_holders=found.by_holders,
        zero_bytes=taking.zero_pages * page,
        repeats=found.repeats,
        by_process={
            pid: replace(held, object_bytes=taking.object_bytes(place))
            for place, (pid, held) in enumerate(found.by_process.items())
            if pid not in unreadable
        },
        unreadable=unreadable,
        sampled_ratio=1 / taking.every,
        read_bytes=taking.read_bytes,
        frames_known=taking.frames_known,
        wall_s=time.monotonic() - began,
        cpu_s=time.process_time() - cpu_began,
    )


class _Taking:
    """What has been read so far."""

    def __init__(self, subjects: Sequence[Subject], page: int, every: int, root: Path) -> None:
        self.every, self.page, self.root = every, page, root
        self.zero_pages = self.read_bytes = 0
        self.frames_known = False
        self._zero = zero_hash(page)
        self._workers = {subject.pid for subject in subjects if subject.is_worker}
        self._ranks = {place: s.rank for place, s in enumerate(subjects) if s.rank is not None}
        families = sorted({subject.family for subject in subjects})
        self._family = {family: number for number, family in enumerate(families)}
        pairs = {(s.family, s.rank) for s in subjects if s.rank is not None}
        self._one_family_of_ranks = len(pairs) > len({family for family, _ in pairs})
        self._files: dict[tuple[str, int], int] = {}
        self._parts: list[Rows] = []
        self._weights: list[NDArray[np.float32]] = []
        self._seen = Seen()
        # of each process: its exclusive pages, those that were looked at, and those with objects
        self._looked: dict[int, list[int]] = {}

    def read(self, place: int, subject: Subject) -> None:
        """Add the pages of one process. Raises OSError, and then adds nothing."""
        parts: list[Rows] = []
        weights: list[NDArray[np.float32]] = []
        zeros, ratios = 0, self._ratios(subject.pid)
        pagemap = os.open(f"{self.root}/{subject.pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with Reader(subject.pid, self.page, self.root) as reader:
                for mapping, kind in data_mappings(subject.pid, self._workers, self.root):
                    file = self._files.setdefault((mapping.device, mapping.inode), len(self._files))
                    for pages, entries in resident(pagemap, mapping, self.page):
                        used = outside(pages, subject.no_data)
                        pages, entries = pages[used], entries[used]
                        self.frames_known = self.frames_known or bool((entries & FRAME_NUMBER).any())
                        names = frames(
                            pages, entries, mapping, self.page,
                            process=place, family=self._family[subject.family], file=file,
                        )  # fmt: skip
                        content, names = self._contents(reader, pages, names, place, subject.rank)
                        full = content != self._zero
                        zeros += int(content.size - full.sum())
                        parts.append(_rows(content[full], names[full], place, KINDS.index(kind)))
                        ratio = ratios.get(mapping.start, 0.0)
                        weights.append(np.full(len(parts[-1]), ratio, np.float32))
                self.read_bytes += reader.read_bytes
            if not parts and not shows_any(pagemap, subject.pid, self.page, self.root):
                raise PermissionError(errno.EPERM, "pagemap shows nothing of it (a sandbox?)")
        finally:
            os.close(pagemap)
        self._parts += parts
        self._weights += weights
        self.zero_pages += zeros * self.every

    def rows(self) -> Rows:
        """All that was read, frames told apart."""
        rows = counting.joined(self._parts)
        if self.frames_known or not self._one_family_of_ranks:
            return rows
        return counting.split_forked(rows, np.concatenate(self._weights), self._ranks)

    def object_bytes(self, place: int) -> int:
        """Of a process: exclusive bytes that hold objects."""
        pages, looked, objects = self._looked.get(place, (0, 0, 0))
        return round(pages * objects / looked * self.page * self.every) if looked else 0

    def _contents(
        self, reader: Reader, pages: Words, names: Words, place: int, rank: int | None
    ) -> tuple[Words, Words]:
        """Hashes and names of those pages that are counted; a frame that was read before is not read again."""
        shared = names & ALONE == 0
        # without frame numbers two ranks' frames may have one name
        keys = np.where(names & FORKED != 0, names ^ np.uint64(((rank or 0) + 1) << 40), names)
        known, content = self._seen.find(keys, shared)
        got, anonymous = known.copy(), names & OF_FILE == 0
        for by_fork in (False, True):
            wanted = pages[~known & ((shared & anonymous) == by_fork)]
            if self.every > 1:
                wanted = wanted[_chosen(reader, wanted, self.every, by_fork)]
            kept, hashes, objects = reader.hashes(wanted, by_fork=by_fork)
            at = np.searchsorted(pages, kept)
            content[at], got[at] = hashes, True
            self._look(place, objects[~shared[at]])
        fresh = got & ~known & shared
        self._seen.add(keys[fresh], content[fresh])
        return content[got], names[got]

    def _look(self, place: int, objects: NDArray[np.int8]) -> None:
        """Remember how many of a process's own pages hold objects."""
        looked = self._looked.setdefault(place, [0, 0, 0])
        for number, count in enumerate((objects.size, (objects >= 0).sum(), (objects == 1).sum())):
            looked[number] += int(count)

    def _ratios(self, pid: int) -> dict[int, float]:
        if not self._one_family_of_ranks:
            return {}
        return shared_ratios(procfs.read(pid, "smaps", self.root))


def _chosen(reader: Reader, pages: Words, every: int, by_fork: bool) -> NDArray[np.bool_]:
    """One content in ``every``, told by 64 bytes of it: the first of four places that does not hold zeros."""
    digests = np.zeros(pages.size, np.uint64)
    for quarter in (2, 1, 3, 0):
        empty = digests == 0
        digests[empty] = reader.pieces(pages[empty], reader.page // 4 * quarter, by_fork=by_fork)
    chosen: NDArray[np.bool_] = (digests % np.uint64(every) == 0) & (digests != 0)
    return chosen


def _rows(content: Words, names: Words, place: int, kind: int) -> Rows:
    return Rows(
        content, names, np.full(content.size, place, np.uint16), np.full(content.size, kind, np.uint8)
    )


def _resident_pages(pid: int, root: Path) -> int:
    try:
        return int(procfs.read(pid, "statm", root).split()[1])
    except (OSError, IndexError, ValueError):
        return 0



"""What was seen of a job so far: who joined and left, memory over time, whether it has settled or grown."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from shardlab.measure import procfs
from shardlab.measure.census.pages import kind_of, mappings, programs, without_bss
from shardlab.measure.procfs import PROC
from shardlab.measure.reading import read_tree
from shardlab.measure.timeline import Timeline
from shardlab.measure.tree import Proc
from shardlab.watching.facts import Member, Seen

SETTLED_S = 3.0
LONGEST_S = 10.0
SETTLED_RATIO, SETTLED_BYTES = 0.02, 16 << 20
REMEMBERED_S = 60.0
GROWN_RATIO, GROWN_BYTES = 0.25, 64 << 20
SHARE, LEAST_S = 200, 0.25
"""PSS is read for at most half a percent of a core, one process at a time."""

PROGRAM = "program"


class History:
    """Memory of the members over time; rows go to ``memory.csv`` of ``results``."""

    def __init__(self, run_id: str, node: str, results: str | None, root: Path = PROC) -> None:
        self.timeline = Timeline(run_id, node, results, root, least_s=LEAST_S, share=SHARE)
        self._root = root
        self._joined: dict[tuple[int, int], float] = {}
        self._left: dict[tuple[int, int], float] = {}
        self._members: dict[tuple[int, int], Member] = {}
        self._rss: dict[tuple[int, int], int] = {}
        self._sums: deque[tuple[float, int]] = deque()
        self._settled_s: float | None = None
        self._kinds: dict[tuple[int, int], dict[str, int]] = {}

    @property
    def t_s(self) -> float:
        """Seconds since the watch began."""
        return self.timeline.t_s

    def follow(self, members: Sequence[Member]) -> None:
        """These live now."""
        now = self.t_s
        living = {(m.pid, m.start_ticks): m for m in members}
        for key, member in living.items():
            self._joined.setdefault(key, now)
            self._members[key] = member
        for key in self._members.keys() - living.keys():
            if now - self._left.setdefault(key, now) > REMEMBERED_S:  # workers made anew each epoch add up
                self._forget(key)
        self.timeline.procs = [
            Proc(m.pid, m.start_ticks, m.ppid, m.role, m.rank, m.worker) for m in members
        ]

    def _forget(self, key: tuple[int, int]) -> None:
        for table in (self._joined, self._left, self._members, self._rss, self._kinds):
            table.pop(key, None)
        self.timeline.forget(key)

    def tick(self) -> float:
        """A sample of all that live. Returns the seconds of the processor that it took."""
        began = time.process_time()
        self.timeline.tick()
        now, lasting = self.t_s, 0
        for proc in self.timeline.procs:
            rss = self.timeline.rss_of(proc)
            if rss is not None:
                self._rss[proc.pid, proc.start_ticks] = rss
                lasting += 0 if proc.role == "worker" else rss
        self._sums.append((now, lasting))
        while len(self._sums) > 2 and self._sums[1][0] < now - SETTLED_S:
            self._sums.popleft()
        return time.process_time() - began

    def read_all(self) -> None:
        """PSS of every member now, and what kinds of mapping it is of: dear, some 50 ms per GiB."""
        self.timeline.record(read_tree(self.timeline.procs, self._root))
        workers = {m.pid for m in self._members.values() if m.role == "worker"}
        for proc in self.timeline.procs:
            kinds = by_kind(proc.pid, workers, self._root)
            if kinds is not None:
                self._kinds[proc.pid, proc.start_ticks] = kinds

    def settled(self) -> bool:
        """Whether resident memory has hardly moved for three seconds, in which nobody joined.

        Workers may come and go with each epoch, so these are waited for, but not for long.
        """
        if not self._has_settled():
            self._settled_s = None
            return False
        self._settled_s = self.t_s if self._settled_s is None else self._settled_s
        youngest = max((t_s for key, t_s in self._joined.items() if key not in self._left), default=0.0)
        return self.t_s - youngest >= SETTLED_S or self.t_s - self._settled_s >= LONGEST_S

    def _has_settled(self) -> bool:
        if not self._sums or self._sums[-1][0] - self._sums[0][0] < SETTLED_S * 0.9:
            return False
        joined = (t_s for key, t_s in self._joined.items() if self._members[key].role != "worker")
        if self.t_s - max(joined, default=0.0) < SETTLED_S:
            return False
        sizes = [size for _, size in self._sums]
        return max(sizes) - min(sizes) <= max(SETTLED_BYTES, SETTLED_RATIO * max(sizes))

    def held(self) -> int:
        """Bytes that the living hold together, each as it was last read: PSS, which copying on write raises too."""
        last = self.timeline.last
        read = (last.get((proc.pid, proc.start_ticks)) for proc in self.timeline.procs)
        return sum(memory.pss_bytes or 0 for memory in read if memory is not None)

    def grown(self, since: int) -> bool:
        """Whether that has grown by a quarter, and by 64 MiB, over what it was."""
        return self.held() - since > max(GROWN_BYTES, GROWN_RATIO * since)

    def seen(self) -> tuple[Seen, ...]:
        """All that are members, or left within the last minute, these as they were last seen."""
        timeline = self.timeline
        return tuple(
            Seen(
                member, self._joined[key], self._left.get(key), timeline.first.get(key),
                timeline.last.get(key), self._rss.get(key), self._kinds.get(key, {}),
            )
            for key, member in self._members.items()
        )  # fmt: skip


def by_kind(pid: int, workers: set[int], root: Path = PROC) -> dict[str, int] | None:
    """PSS in bytes by kind of mapping, from ``smaps``; ``None`` where it cannot be read.

    Variables of a library that begin as zeros are the program's. The kernel may merge an array with them, and tells
    one PSS for both: the array is taken to be resident, and what it has no room for is the program's.
    """
    try:
        text = procfs.read(pid, "smaps", root)
    except OSError:
        return None
    found = mappings(text)
    code = programs(found)
    data = [m.end - m.start for m in without_bss(found, f"{root}/{pid}/root")]
    sums: dict[str, int] = {}
    # every mapping has one line of PSS, in the same order
    sizes = (int(kib) * 1024 for kib in re.findall(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE))
    for mapping, room, size in zip(found, data, sizes, strict=False):
        kind = kind_of(mapping, code, workers) or PROGRAM
        of_kind = min(size, room) if room < mapping.end - mapping.start else size
        for name, part in ((kind, of_kind), (PROGRAM, size - of_kind)):
            if part:
                sums[name] = sums.get(name, 0) + part
    return sums

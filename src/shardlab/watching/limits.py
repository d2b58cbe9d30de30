"""What can run out: memory and swap that a cgroup allows, the machine's, /dev/shm, open files, mappings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from shardlab.measure import cgroup, procfs
from shardlab.measure.cgroup import CGROUP, FILES, SWAP_FILES, clean_cache_bytes, text
from shardlab.measure.procfs import PROC
from shardlab.watching.facts import Limit

MEMORY_LIMIT, SWAP_LIMIT, BOTH_LIMIT = "memory limit", "swap limit", "memory and swap limit"
OF_GROUPS = (MEMORY_LIMIT, SWAP_LIMIT, BOTH_LIMIT)
MAPPINGS = "memory mappings"
_KILLS = {1: "memory.oom_control", 2: "memory.events"}


class Limits:
    """The limits of a job, whose processes may move to other cgroups while they run."""

    def __init__(self, root: Path = PROC, cgroup_root: Path = CGROUP) -> None:
        self._root, self._cgroup_root = root, cgroup_root
        self._groups: dict[Path, int] = {}
        self._of: dict[int, tuple[str, tuple[Path, ...]]] = {}  # what the kernel said, and what it meant
        self._kills_before: dict[Path, int] = {}
        self._kills_since: dict[Path, int] = {}  # as last read: a group may be removed
        self._machine_before = _kills(root / "vmstat")

    def look(self, pids: Iterable[int]) -> None:
        """Find the cgroups of these processes, and how often each group has killed until it was first seen."""
        for pid in pids:
            told = text(self._root / str(pid) / "cgroup")
            if not told or self._of.get(pid, ("", ()))[0] == told:
                continue
            version, groups = cgroup.memory_groups(self._root, self._cgroup_root, pid)
            self._of[pid] = told, tuple(groups)
            for group in groups:
                if version is not None and group not in self._groups:
                    self._groups[group] = version
                    kills = _kills(group / _KILLS[version])
                    if kills is not None:
                        self._kills_before[group] = kills

    def kills(self) -> int | None:
        """Processes that the kernel ended for lack of memory since the first look; ``None`` where it is not told.

        Those of the job's own cgroups are summed; where these count none, an ancestor's, which may be of others.
        """
        own = {groups[0] for groups in self._chains() if groups}
        for group, before in self._kills_before.items():
            now = _kills(group / _KILLS[self._groups[group]])
            if now is not None:
                self._kills_since[group] = now - before
        summed = sum(count for group, count in self._kills_since.items() if group in own)
        return summed or max(self._kills_since.values(), default=None)

    def kills_of_the_machine(self) -> int | None:
        """Processes of anybody that it ended for lack of memory since the watch began; where no cgroup tells."""
        now = _kills(self._root / "vmstat")
        return None if now is None or self._machine_before is None else now - self._machine_before

    def of(self, pids: Iterable[int]) -> tuple[Limit, ...]:
        """All limits that are known, the cgroup's first."""
        living = list(pids)
        root = self._root
        of_processes = (*_files(living, root), *_mappings(living, root))
        return (*self.of_groups(), *_machine(root), *_shm(living, root), *of_processes)

    def of_groups(self) -> Iterator[Limit]:
        """Of each process's cgroup and its ancestors the fullest limits of memory and of swap; few files, cheap."""
        found = {}
        for groups in self._chains():
            limits = [limit for group in groups for limit in self._limits(group)]
            for name in {limit.name for limit in limits}:
                fullest = max((limit for limit in limits if limit.name == name), key=lambda limit: limit.ratio)
                found[OF_GROUPS.index(name), fullest.where] = fullest
        yield from (found[key] for key in sorted(found))

    def _chains(self) -> set[tuple[Path, ...]]:
        return {groups for _, groups in self._of.values()}

    def _limits(self, group: Path) -> Iterator[Limit]:
        version, where = self._groups[group], f"cgroup {self._name(group)}"
        (most, used), (most_swap, used_swap) = (
            [procfs.cgroup_bytes(text(group / name)) for name in files[version]] for files in (FILES, SWAP_FILES)
        )
        if not most and not most_swap:
            return
        clean = clean_cache_bytes(text(group / "memory.stat"), version)
        if most and used is not None:
            yield Limit(MEMORY_LIMIT, where, max(used - clean, 0), most)
        if not most_swap or used_swap is None:
            return
        if version == 2:
            yield Limit(SWAP_LIMIT, where, used_swap, most_swap)
        elif most is None or most_swap > most:  # they are equal where the group may not swap
            yield Limit(BOTH_LIMIT, where, max(used_swap - clean, 0), most_swap)

    def _name(self, group: Path) -> str:
        """Its path below where groups are mounted."""
        inside = group.relative_to(self._cgroup_root)
        return str(inside.relative_to("memory") if inside.parts[:1] == ("memory",) else inside)


def _kills(file: Path) -> int | None:
    match = re.search(r"^oom_kill (\d+)$", text(file), re.MULTILINE)
    return int(match[1]) if match else None


def _machine(root: Path) -> Iterator[Limit]:
    sizes = {
        name: int(kib) * 1024
        for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text(root / "meminfo"), re.MULTILINE)
    }
    if "MemTotal" in sizes and "MemAvailable" in sizes:
        yield Limit("memory", "the machine", sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"])
    if sizes.get("SwapTotal"):
        yield Limit("swap", "the machine", sizes["SwapTotal"] - sizes.get("SwapFree", 0), sizes["SwapTotal"])


def _shm(pids: list[int], root: Path) -> Iterator[Limit]:
    """/dev/shm as the job sees it: it may have one of its own."""
    for pid in pids:
        try:
            info = os.statvfs(f"{root}/{pid}/root/dev/shm")
        except OSError:
            continue
        size = info.f_blocks * info.f_frsize
        if size:
            yield Limit("shared memory", "/dev/shm", size - info.f_bavail * info.f_frsize, size)
        return


def _files(pids: list[int], root: Path) -> Iterator[Limit]:
    """Open files of the process that is nearest to its limit."""
    found = []
    for pid in pids:
        match = re.search(r"^Max open files\s+(\d+)", text(root / str(pid) / "limits"), re.MULTILINE)
        try:
            used = len(os.listdir(f"{root}/{pid}/fd"))
        except OSError:
            continue
        if match and int(match[1]):
            found.append(Limit("open files", f"process {pid}", used, int(match[1]), "files"))
    yield from sorted(found, key=lambda limit: -limit.ratio)[:1]


def _mappings(pids: list[int], root: Path) -> Iterator[Limit]:
    """Mappings of the process that has most; beyond the limit mmap fails with ENOMEM, however much memory is free."""
    most = text(root / "sys/vm/max_map_count")
    if not most.isdigit():
        return
    counts = [(count, pid) for pid in pids if (count := len(text(root / str(pid) / "maps").splitlines()))]
    for count, pid in sorted(counts, reverse=True)[:1]:
        yield Limit(MAPPINGS, f"process {pid}", count, int(most), "mappings")

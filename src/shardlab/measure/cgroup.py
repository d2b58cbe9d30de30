"""Limits that a cgroup of this process sets, in either version of the kernel's interface."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shardlab.measure import procfs
from shardlab.measure.procfs import PROC

CGROUP = Path("/sys/fs/cgroup")
FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
"""Of each version: the limit, and what is used of it."""

SWAP_FILES = {
    1: ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
    2: ("memory.swap.max", "memory.swap.current"),
}
"""The same of swap, which version 1 counts together with memory; missing where the kernel does not account for it."""

_CACHE = {1: ("total_inactive_file", "total_active_file"), 2: ("inactive_file", "active_file")}
_UNWRITTEN = {1: ("total_dirty", "total_writeback"), 2: ("file_dirty", "file_writeback")}


class MemoryLimit(NamedTuple):
    """``version`` is None where no cgroup controls memory, ``limit_bytes`` where none limits it."""

    version: int | None
    limit_bytes: int | None
    used_bytes: int | None


def memory_limit(root: Path = PROC, cgroup_root: Path = CGROUP) -> MemoryLimit:
    """The tightest limit of this process's cgroup and its ancestors, and the usage of the one that has it."""
    version, groups = memory_groups(root, cgroup_root)
    if version is None:
        return MemoryLimit(None, None, None)
    limit_file, used_file = FILES[version]
    limits = [(procfs.cgroup_bytes(text(group / limit_file)), group) for group in groups]
    known = [(limit, group) for limit, group in limits if limit is not None]
    if not known:
        return MemoryLimit(version, None, None)
    limit, group = min(known, key=lambda pair: pair[0])
    return MemoryLimit(version, limit, procfs.cgroup_bytes(text(group / used_file)))


def clean_cache_bytes(stat: str, version: int) -> int:
    """What of a group's usage is page cache that the kernel can drop at once, from its ``memory.stat``.

    ::

        inactive_file 100, active_file 50, file_dirty 30, file_writeback 10    110 of 150

    Dirty pages have to be written first, and may not be in time. Shared memory is in none of these, though it is
    counted as ``file`` and ``cache``: it can only be swapped.
    """
    sizes = {name: int(size) for name, size in re.findall(r"^(\w+) (\d+)$", stat, re.MULTILINE)}
    cache, unwritten = (sum(sizes.get(name, 0) for name in of[version]) for of in (_CACHE, _UNWRITTEN))
    return max(cache - unwritten, 0)


def cpus(root: Path = PROC, cgroup_root: Path = CGROUP) -> float | None:
    """Cores that the tightest CPU quota allows, 1.5 for ``150000 100000``; ``None`` without a quota."""
    paths = procfs.cgroup_paths(text(root / "self/cgroup"))
    if "cpu" in paths:
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        groups = _ancestors(cgroup_root / "cpu", paths["cpu"])
        texts = [" ".join(text(group / file) for file in files) for group in groups]
    else:
        texts = [text(group / "cpu.max") for group in _ancestors(cgroup_root, paths.get("", "/"))]
    pairs = [text.split() for text in texts]
    known = [(int(p[0]), int(p[1])) for p in pairs if len(p) == 2 and p[0].isdecimal() and p[1].isdecimal()]
    quotas = [quota / period for quota, period in known if period]
    return min(quotas, default=None)


def text(path: Path) -> str:
    """What a file says; nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def memory_groups(
    root: Path = PROC, cgroup_root: Path = CGROUP, pid: int | str = "self"
) -> tuple[int | None, list[Path]]:
    """Version of the cgroups that limit memory, and a process's own with its ancestors, nearest first."""
    paths = procfs.cgroup_paths(text(root / str(pid) / "cgroup"))
    if "memory" in paths:
        return 1, list(_ancestors(cgroup_root / "memory", paths["memory"]))
    if "" in paths and "memory" in text(cgroup_root / "cgroup.controllers").split():
        return 2, list(_ancestors(cgroup_root, paths[""]))
    return None, []


def _ancestors(mount: Path, path: str) -> Iterator[Path]:
    """The folders of a cgroup and its ancestors, nearest first.

    A container may see its own cgroup as the mount itself while its path is the host's: what is not there is
    passed over.
    """
    folder = mount / path.strip("/")
    while folder != mount and mount in folder.parents:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield mount

"""A group of processes whose memory the kernel counts and limits: a cgroup of version 1 or 2, gone afterwards.

The group is made within the one that this process is in, so that whatever limits that one still holds. Making it
needs to be root, or a cgroup that was delegated; ``NoGroup`` says what was missing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from shardlab.measure.cgroup import CGROUP, memory_groups, text
from shardlab.measure.procfs import PROC

PREFIX = "shardlab-"
REMOVAL_S = 10.0


class NoGroup(Exception):
    """No cgroup can be made here that limits memory; the text is the reason."""


@dataclass(frozen=True)
class Files:
    """What the kernel calls them: the limit, the most that was used, what happened, and the limit on swap."""

    limit: str
    peak: str
    events: str
    swap: str


VERSIONS = {
    1: Files(
        "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control", "memory.memsw.limit_in_bytes"
    ),
    2: Files("memory.max", "memory.peak", "memory.events", "memory.swap.max"),
}  # fmt: skip


@dataclass(frozen=True)
class Used:
    """Most bytes at once, files that the group read first included, and processes that the kernel killed."""

    peak_bytes: int | None
    oom_kills: int | None


@dataclass(frozen=True)
class Group:
    """A cgroup. A command with ``prefix`` before it runs in it, and so does all that it starts."""

    folder: Path
    files: Files

    @property
    def prefix(self) -> tuple[str, ...]:
        """A shell that moves itself into the group, and becomes the command."""
        return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"))

    def used(self) -> Used:
        """What the kernel counted since the group was made."""
        peak = text(self.folder / self.files.peak)
        kills = events(text(self.folder / self.files.events)).get("oom_kill")
        return Used(int(peak) if peak.isdigit() else None, kills)


def events(written: str) -> dict[str, int]:
    """Names and counts, a line each.

    >>> events("under_oom 0\\noom_kill 2")
    {'under_oom': 0, 'oom_kill': 2}
    """
    pairs = (line.split() for line in written.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


@contextmanager
def group(limit_bytes: int | None, root: Path = PROC, cgroup_root: Path = CGROUP) -> Iterator[Group]:
    """A new cgroup, without a limit where it is None; at the end what still runs in it is killed and it is removed.

    ``limit_bytes`` are of memory; swap is not allowed on top where the kernel counts it. Raises NoGroup.
    """
    files, parent = place(root, cgroup_root)
    _sweep(parent)
    folder = parent / f"{PREFIX}{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise NoGroup(f"no cgroup can be made: {error.strerror}") from None
    try:
        made = Group(folder, files)
        _limit(made, limit_bytes)
        yield made
    finally:
        _remove(folder)


def place(root: Path = PROC, cgroup_root: Path = CGROUP) -> tuple[Files, Path]:
    """Names of the files, and the nearest cgroup of this process whose children can limit memory."""
    version, groups = memory_groups(root, cgroup_root)
    if version is None:
        raise NoGroup("no cgroup controls memory")
    for folder in groups:
        if version == 1 or "memory" in text(folder / "cgroup.subtree_control").split():
            return VERSIONS[version], folder
    raise NoGroup("no cgroup of this process lets its children limit memory (cgroup.subtree_control)")


def _limit(made: Group, limit_bytes: int | None) -> None:
    if not (made.folder / made.files.limit).exists():
        raise NoGroup(f"a cgroup that is made here has no {made.files.limit}")
    if limit_bytes is None:
        return
    try:
        (made.folder / made.files.limit).write_text(str(limit_bytes))
    except OSError as error:
        raise NoGroup(f"{made.files.limit} cannot be set: {error.strerror}") from None
    with suppress(OSError):  # version 1 limits memory and swap together, version 2 swap alone
        swap = made.folder / made.files.swap
        if swap.exists():
            swap.write_text(str(limit_bytes) if made.files is VERSIONS[1] else "0")


def _sweep(parent: Path) -> None:
    """Remove what an experiment left that was itself killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        maker = folder.name.removeprefix(PREFIX)
        if maker.isdigit() and not psutil.pid_exists(int(maker)):
            _remove(folder)


def members(written: str) -> list[int]:
    """Processes of a group that can be named here.

    One outside of this process's namespace reads 0, and to kill that is to kill the whole group of the killer.

    >>> members("0\\n12\\n")
    [12]
    """
    return [int(pid) for pid in written.split() if int(pid) > 0]


def _remove(folder: Path) -> None:
    """Kill what is in the group; it can be removed a moment after the last process has gone."""
    deadline = time.monotonic() + REMOVAL_S
    while True:
        for pid in members(text(folder / "cgroup.procs")):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            return folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)

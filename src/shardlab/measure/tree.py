"""The processes of a run: who descends from whom, and what each of them is."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shardlab.measure import elsewhere, procfs
from shardlab.measure.procfs import PROC, Stat

_SERVANTS = {
    "multiprocessing.forkserver": "forkserver",
    "multiprocessing.resource_tracker": "tracker",
    "torch_shm_manager": "tracker",
    "torch/_inductor/compile_worker": "other",
}
_GONE = ("Z", "X", "x")


@dataclass(frozen=True)
class Proc:
    """One process; ``(pid, start_ticks)`` names it, as pids are used again.

    ``role`` is launcher, rank, worker, forkserver, tracker or other; ``worker`` numbers the workers of a
    rank in the order of their start.
    """

    pid: int
    start_ticks: int
    ppid: int
    role: str = "other"
    rank: int | None = None
    worker: int | None = None


def descendants(pids: Iterable[int], root: Path = PROC, skip: Iterable[int] = ()) -> dict[int, Stat]:
    """The processes ``pids`` and all that descend from them, parents first; zombies included.

    ``skip`` are left out with all that descends from them.
    """
    left_out = set(skip)
    found: dict[int, Stat] = {}
    waiting = list(pids)
    by_file = any(os.path.exists(f"{root}/{pid}/task/{pid}/children") for pid in waiting)
    children = _children_by_file if by_file else _children_by_scan(root)
    while waiting:
        pid = waiting.pop(0)
        if pid in found or pid in left_out:
            continue
        stat = _stat(pid, root)
        if stat is not None:
            found[pid] = stat
            waiting += children(pid, root)
    return found


def classify(
    found: Mapping[int, Stat],
    launcher_pid: int | None,
    rank_pids: Mapping[int, int],
    cmdline: Callable[[int], str],
) -> list[Proc]:
    """Give each living process of :func:`descendants` its role; ``rank_pids`` is rank to pid.

    ::

        launcher
        |- forkserver, tracker
        |- rank 0
        |  |- worker 0, worker 1            started by fork or spawn
        |  '- forkserver - worker 2         started by a forkserver of the rank
        '- rank 1
    """
    rank_of = {pid: rank for rank, pid in rank_pids.items()}
    procs: dict[int, Proc] = {}
    for pid, stat in found.items():
        parent = procs.get(stat.ppid)
        proc = Proc(pid, stat.start_ticks, stat.ppid, rank=parent.rank if parent else None)
        if pid in rank_of:
            proc = replace(proc, role="rank", rank=rank_of[pid])
        elif pid == launcher_pid:
            proc = replace(proc, role="launcher")
        else:
            plain = "other" if proc.rank is None else "worker"
            forked = stat.ppid in found and _forked(pid, stat, found[stat.ppid], cmdline)
            proc = replace(proc, role=plain if forked else servant(cmdline(pid)) or plain)
        procs[pid] = proc
    return _numbered([proc for proc in procs.values() if found[proc.pid].state not in _GONE])


def families(found: Mapping[int, Stat], cmdline: Callable[[int], str]) -> dict[int, int]:
    """Of each process of :func:`descendants`, parents first: the pid from which it descends by forks alone."""
    of: dict[int, int] = {}
    for pid, stat in found.items():
        parent = found.get(stat.ppid)
        forked = parent is not None and stat.ppid in of and _forked(pid, stat, parent, cmdline)
        of[pid] = of[stat.ppid] if forked else pid
    return of


def read_cmdline(pid: int, root: Path = PROC) -> str:
    """The command line with spaces between its words; empty where it cannot be read."""
    try:
        return procfs.read(pid, "cmdline", root).replace("\0", " ")
    except OSError:
        return ""


def tree_cpu_s(pid: int, root: Path = PROC) -> float:
    """Seconds of CPU, user and system, of a process, its reaped children and its living descendants.

    A worker that ended is counted by the process that waited for it. To a tick (10 ms) for each process, to a
    microsecond for the calling process itself. Zero where the process is gone.
    """
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    found = descendants([pid], root)
    total = 0.0
    for other, stat in found.items():
        if other == os.getpid():
            for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)):
                total += usage.ru_utime + usage.ru_stime
        else:
            total += (stat.cpu_ticks + stat.reaped_cpu_ticks) / ticks_per_s
    return total


def is_alive(pid: int, start_ticks: int | None = None, root: Path = PROC) -> bool:
    """True where the process runs and, given its start, is still the same one."""
    now = start_ticks_of(pid, root)
    return now is not None and start_ticks in (None, now)


def start_ticks_of(pid: int, root: Path = PROC) -> int | None:
    """When the process started; ``None`` where it does not run, or has ended and waits to be reaped."""
    stat = _stat(pid, root)
    return None if stat is None or stat.state in _GONE else stat.start_ticks


def _stat(pid: int, root: Path) -> Stat | None:
    if root.is_dir():
        return procfs.read_stat(pid, root)
    facts = elsewhere.stat(pid)
    return None if facts is None else Stat(*facts)


def _forked(pid: int, stat: Stat, parent: Stat, cmdline: Callable[[int], str]) -> bool:
    """True for a copy of its parent, whose command line then says nothing of what it is itself.

    It also keeps the address of the stack, which a new program is given anew.
    """
    return stat.start_stack == parent.start_stack and cmdline(pid) == cmdline(stat.ppid)


def servant(cmdline: str) -> str | None:
    """What multiprocessing or torch started such a program for; ``None`` for any other."""
    return next((role for name, role in _SERVANTS.items() if name in cmdline), None)


def _numbered(procs: list[Proc]) -> list[Proc]:
    counts: dict[int | None, int] = {}
    numbers: dict[int, int] = {}
    for proc in sorted((p for p in procs if p.role == "worker"), key=lambda p: (p.start_ticks, p.pid)):
        numbers[proc.pid] = counts.get(proc.rank, 0)
        counts[proc.rank] = numbers[proc.pid] + 1
    return [replace(proc, worker=numbers[proc.pid]) if proc.pid in numbers else proc for proc in procs]


def _children_by_file(pid: int, root: Path) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"{root}/{pid}/task"):
            found += map(int, procfs.read(pid, f"task/{thread}/children", root).split())
    except OSError:
        pass  # the process or one of its threads ended meanwhile
    return found


def _children_by_scan(root: Path) -> Callable[[int, Path], list[int]]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents(root).items():
        children.setdefault(parent, []).append(pid)
    return lambda pid, _: children.get(pid, [])


def _parents(root: Path) -> dict[int, int]:
    if not root.is_dir():
        return elsewhere.parents()
    stats = {int(name): procfs.read_stat(int(name), root) for name in os.listdir(root) if name.isdigit()}
    return {pid: stat.ppid for pid, stat in stats.items() if stat is not None}

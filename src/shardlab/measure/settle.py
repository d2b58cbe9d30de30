"""Brings the processes of a held run to rest before they are read: workers idle, free memory given back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from shardlab.measure import procfs
from shardlab.measure.hold import TRIM_SIGNAL
from shardlab.measure.procfs import PROC
from shardlab.measure.tree import Proc

POLL_S = 0.05
IDLE_POLLS = 3
MOST_SWITCHES = 2
"""Of an idle process, between two polls: it may look around; one that works in small pieces wakes more."""

AGREE_BYTES = 64 << 10
Pause = Callable[[float], None]


def wait_idle(procs: Sequence[Proc], pause: Pause, limit_s: float, root: Path = PROC) -> bool:
    """Wait until all workers have filled their queues; False where one still works after ``limit_s``.

    Idle is: asleep, and hardly woken since the poll before, in three polls in a row.
    """
    workers = [proc.pid for proc in procs if proc.role == "worker"]
    deadline = time.monotonic() + limit_s
    before: dict[int, int] = {}
    idle_polls = 0
    while workers:
        now = {pid: _switches(pid, root) for pid in workers}
        woken = any(now[pid] - before.get(pid, now[pid]) > MOST_SWITCHES for pid in workers)
        idle_polls = 0 if woken or any(_is_busy(pid, root) for pid in workers) else idle_polls + 1
        if idle_polls >= IDLE_POLLS or time.monotonic() > deadline:
            return idle_polls >= IDLE_POLLS
        before = now
        pause(POLL_S)
    return True


def trim_workers(procs: Sequence[Proc], root: Path = PROC) -> list[int]:
    """Ask the workers that catch TRIM_SIGNAL, and no other process, to trim. Returns the pids asked.

    The signal would end a process that does not catch it.
    """
    if TRIM_SIGNAL is None:
        return []
    workers = [proc for proc in procs if proc.role == "worker"]
    return [proc.pid for proc in workers if _signalled(proc, TRIM_SIGNAL, root)]


def anonymous_bytes(procs: Sequence[Proc], root: Path = PROC) -> int:
    """Resident anonymous memory of all processes together, read at next to no cost."""
    page_size = os.sysconf("SC_PAGESIZE")
    total = 0
    for proc in procs:
        with suppress(OSError, ValueError):
            total += procfs.statm_anon(procfs.read(proc.pid, "statm", root), page_size)
    return total


def settled(procs: Sequence[Proc], pause: Pause, limit_s: float, root: Path = PROC) -> tuple[int, bool]:
    """Wait until two readings of the anonymous memory agree within 64 KiB a process.

    Returns the last reading in bytes, and whether it agreed.
    """
    deadline = time.monotonic() + limit_s
    last = anonymous_bytes(procs, root)
    while time.monotonic() < deadline:
        pause(POLL_S / 2)
        reading = anonymous_bytes(procs, root)
        if abs(reading - last) <= AGREE_BYTES * len(procs):
            return reading, True
        last = reading
    return last, False


def _signalled(proc: Proc, number: int, root: Path) -> bool:
    try:
        handle = os.pidfd_open(proc.pid)  # from here on the number cannot come to mean another process
    except (OSError, AttributeError):
        return False
    try:
        stat = procfs.read_stat(proc.pid, root)
        mask = procfs.status_signals_caught(procfs.read(proc.pid, "status", root))
        if stat is None or stat.start_ticks != proc.start_ticks or not mask >> (number - 1) & 1:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def _is_busy(pid: int, root: Path) -> bool:
    stat = procfs.read_stat(pid, root)
    return stat is not None and stat.state in ("R", "D")


def _switches(pid: int, root: Path) -> int:
    try:
        return procfs.status_switches(procfs.read(pid, "status", root)) or 0
    except OSError:
        return 0

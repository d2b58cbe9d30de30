"""The most memory that a command and its processes held at a time, read from outside, not by shardlab's monitor."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from shardlab.measure import procfs, tree

EVERY_S = 0.05
QUICKLY_S = 0.002
NOT_OF_THE_JOB = ("shardlab.measure.monitor", "shardlab.launch.probe")
PAGE = os.sysconf("SC_PAGESIZE")
SHARED = 0  # no process has this number


def peak_bytes(command: Sequence[str]) -> tuple[int, float]:
    """The most that the processes of a command held at a time, and how often all of them were read in a second.

    Between two readings of PSS it is what came since to the anonymous pages of each process and to shared memory. A
    reading during which a process came or went does not count: the pages that it shared are in two parts of the sum.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    began, readings, most = time.monotonic(), 0, 0
    while process.poll() is None:
        living = job_of(process.pid)
        held, before = held_bytes(living)
        if job_of(process.pid) != living:
            continue
        most, readings, until = max(most, held), readings + 1, time.monotonic() + EVERY_S
        while process.poll() is None and time.monotonic() < until:
            now = quick_bytes(before)
            came = sum(now[key] - before[key] for key in now)
            most = max(most, held + came)
            time.sleep(QUICKLY_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return most, round(readings / (time.monotonic() - began), 1)


def held_bytes(pids: Sequence[int]) -> tuple[int, dict[int, int]]:
    """PSS of all, and what :func:`quick_bytes` says just before of those whose pages are their own alone.

    The largest, which may grow, is read first. The pages of a process while it is forked come to it in steps.
    """
    quick = quick_bytes(pids)
    held = 0
    for pid in sorted(pids, key=lambda pid: -quick.get(pid, 0)):
        at = quick_bytes([pid])
        memory = procfs.read_memory(pid)
        if memory is not None and pid in at:
            held += memory.pss_bytes or 0
            quick[pid] = at[pid]
    return held, {pid: quick[pid] for pid in quick if pid == SHARED or not is_forked(pid)}


def is_forked(pid: int) -> bool:
    """Whether a process runs what its parent runs."""
    stat = procfs.read_stat(pid)
    return stat is not None and tree.read_cmdline(pid) == tree.read_cmdline(stat.ppid)


def job_of(pid: int) -> list[int]:
    """The process and its descendants that have memory, without those that are not of the job."""
    found = tree.descendants([pid])
    helpers = [other for other in found if any(name in tree.read_cmdline(other) for name in NOT_OF_THE_JOB)]
    of_job = list(tree.descendants([pid], skip=helpers))
    resident = quick_bytes(of_job)
    return [other for other in of_job if resident.get(other)]  # one that has ended has none


def quick_bytes(pids: Iterable[int]) -> dict[int, int]:
    """Anonymous bytes of each process that is still there, and under 0 the shared memory of the machine."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    found = {SHARED: int(lines["Shmem"].split()[0]) << 10}
    for pid in pids:
        with suppress(OSError, IndexError):
            if pid != SHARED:
                found[pid] = procfs.statm_anon(procfs.read(pid, "statm"), PAGE)
    return found

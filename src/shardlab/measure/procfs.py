"""What the kernel prints under ``/proc``, as numbers: a parser takes the text and returns bytes or ticks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from shardlab.measure import elsewhere
from shardlab.records import Memory

PROC = Path("/proc")

_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ (\S+) (\d+)\s*(.*)$")


class Stat(NamedTuple):
    """The part of ``/proc/PID/stat`` that is used here; times in clock ticks."""

    ppid: int
    state: str
    start_ticks: int
    cpu_ticks: int
    reaped_cpu_ticks: int
    start_stack: int = 0


class MappedFile(NamedTuple):
    """A file as ``smaps`` names it: ``device`` is ``major:minor`` in hexadecimal."""

    device: str
    inode: int
    path: str


def smaps_rollup(text: str) -> Memory:
    """Memory of a process from its ``smaps_rollup``; a field that the kernel does not print is ``None``.

    ::

        55c44541d000-7ffe2c919000 ---p 00000000 00:00 0                          [rollup]
        Rss:                1748 kB      -> rss_bytes
        Pss:                 331 kB      -> pss_bytes
        Pss_Anon:            112 kB      -> pss_anon_bytes
        Pss_File:            219 kB      -> pss_file_bytes
        Pss_Shmem:             0 kB      -> pss_shmem_bytes
        Private_Clean:        40 kB      -> uss_bytes is the sum of
        Private_Dirty:       112 kB         these two

    A whole ``smaps``, which repeats the fields for each mapping, is summed; it has no split of PSS.
    """
    sums: dict[str, int] = {}
    for name, kib in _FIELD.findall(text):
        sums[name] = sums.get(name, 0) + int(kib) * 1024
    clean, dirty = sums.get("Private_Clean"), sums.get("Private_Dirty")
    return Memory(
        rss_bytes=sums.get("Rss"),
        pss_bytes=sums.get("Pss"),
        uss_bytes=None if clean is None or dirty is None else clean + dirty,
        pss_anon_bytes=sums.get("Pss_Anon"),
        pss_file_bytes=sums.get("Pss_File"),
        pss_shmem_bytes=sums.get("Pss_Shmem"),
    )


def smaps_named(text: str, wanted: Callable[[MappedFile], bool]) -> dict[MappedFile, int]:
    """PSS in bytes of the file's own pages, for each mapped file of a ``smaps`` for which ``wanted`` is true.

    ::

        7f10e4a00000-7f10e8a00000 rw-p 00000000 00:01 2051       /memfd:samples (deleted)
        Rss:               65536 kB
        Pss:               16384 kB
        Anonymous:          4096 kB      -> {("00:01", 2051, "/memfd:samples (deleted)"): 12288 * 1024}

    Anonymous pages of a private mapping were written by the process: its own copy, no longer the file's.
    """
    found: dict[MappedFile, int] = {}
    current: MappedFile | None = None
    for line in text.split("\n"):  # a file's name may hold what else ends a line
        if line.startswith(("Pss:", "Anonymous:")):
            if current is not None and (field := _FIELD.match(line)):
                sign = 1 if field[1] == "Pss" else -1
                found[current] = found.get(current, 0) + sign * int(field[2]) * 1024
        elif match := _MAPPING.match(line):
            mapped = MappedFile(match[1], int(match[2]), match[3])
            current = mapped if mapped.path and wanted(mapped) else None
    return {mapped: max(pss, 0) for mapped, pss in found.items()}


def statm_rss(text: str, page_size: int) -> int:
    """Resident bytes from ``statm``: ``2264 437 399 5 0 133 0`` are pages, the second is resident."""
    return int(text.split()[1]) * page_size


def statm_anon(text: str, page_size: int) -> int:
    """Resident anonymous bytes from ``statm``: the second figure less the third, which is files and shmem.

    Ten thousand times cheaper than PSS, but it counts a page once for each process that maps it.
    """
    resident, files = text.split()[1:3]
    return (int(resident) - int(files)) * page_size


def stat(text: str) -> Stat:
    """Parent, state, start and CPU time from ``stat``.

    ::

        4240 (a (b) c) S 4239 ...

    The name may hold spaces and parentheses of its own, so fields are counted from the last parenthesis.
    """
    rest = text[text.rindex(")") + 1 :].split()
    # rest[k] is field k + 3 of proc(5): state 3, ppid 4, utime 14 to cstime 17, starttime 22
    utime, stime, cutime, cstime = (int(value) for value in rest[11:15])
    start_stack = int(rest[25]) if len(rest) > 25 else 0
    return Stat(int(rest[1]), rest[0], int(rest[19]), utime + stime, cutime + cstime, start_stack)


def status_signals_caught(text: str) -> int:
    """Signals with a handler, from ``status``: in ``SigCgt: 0000000000000002`` bit 1 is set, so signal 2."""
    match = re.search(r"^SigCgt:\s+([0-9a-f]+)$", text, re.MULTILINE)
    return int(match[1], 16) if match else 0


def status_switches(text: str) -> int | None:
    """Context switches of the main thread, from ``status``: voluntary and forced ones together."""
    counts = re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", text, re.MULTILINE)
    return sum(map(int, counts)) if counts else None


def status_rss_peak(text: str) -> int | None:
    """Most resident bytes so far, from ``status``: ``VmHWM:    2264 kB``; None where the kernel keeps none."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def cgroup_paths(text: str) -> dict[str, str]:
    """Controller to path, from ``/proc/self/cgroup``; the unified hierarchy has the name ``""``.

    ::

        4:memory:/job/7                  -> {"memory": "/job/7", "": "/"}
        0::/
    """
    paths: dict[str, str] = {}
    lines = (line.split(":", 2) for line in text.split("\n"))  # a path may hold what else ends a line
    for _, controllers, path in (line for line in lines if len(line) == 3):
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def cgroup_bytes(text: str) -> int | None:
    """A limit or a usage in bytes; ``None`` for no limit: ``max``, or in version 1 a number near 2^63."""
    text = text.strip()
    if not text.isdecimal() or int(text) >= 1 << 60:
        return None
    return int(text)


def read(pid: int | str, name: str, root: Path = PROC) -> str:
    """The text of ``/proc/PID/name``. Raises OSError: ProcessLookupError where the process is gone."""
    try:
        descriptor = os.open(f"{root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProcessLookupError(f"no {root}/{pid}/{name}") from None
    try:  # half the time of a file object, and the monitor reads a hundred a second
        parts = list(iter(lambda: os.read(descriptor, 1 << 16), b""))
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "surrogateescape")


def read_stat(pid: int, root: Path = PROC) -> Stat | None:
    """``stat`` of a process; ``None`` where it is gone."""
    try:
        return stat(read(pid, "stat", root))
    except (OSError, ValueError, IndexError):
        return None


def read_rss_peak(pid: int, root: Path = PROC) -> int | None:
    """Most resident bytes of a process so far; ``None`` where it is gone or the kernel does not say."""
    try:
        return status_rss_peak(read(pid, "status", root))
    except OSError:
        return None


def memory(pid: int, root: Path = PROC) -> Memory:
    """Memory of a process. Raises ProcessLookupError where it is gone, PermissionError where it is not ours.

    Elsewhere than Linux only ``rss_bytes`` and ``uss_bytes`` are known, from psutil.
    """
    if not root.is_dir():
        return elsewhere.memory(pid)
    try:
        text = read(pid, "smaps_rollup", root)
    except ProcessLookupError:
        text = ""
    found = smaps_rollup(text or read(pid, "smaps", root))  # kernels before 4.14 have no rollup, and it may be hidden
    if found.rss_bytes is None:
        raise ProcessLookupError(f"{pid} has no memory any more")  # a zombie prints nothing
    return found


def read_memory(pid: int, root: Path = PROC) -> Memory | None:
    """Memory of a process; ``None`` where it is gone or may not be read."""
    try:
        return memory(pid, root)
    except OSError:
        return None

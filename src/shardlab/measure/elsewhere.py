"""The same facts where there is no ``/proc``, from psutil: less of them, and slower."""

from __future__ import annotations

import os

from shardlab.records import Memory


def memory(pid: int) -> Memory:
    """RSS and USS. Raises ProcessLookupError and PermissionError."""
    import psutil

    try:
        info = psutil.Process(pid).memory_full_info()
    except psutil.AccessDenied as error:
        raise PermissionError(str(error)) from None
    except psutil.Error as error:
        raise ProcessLookupError(str(error)) from None
    return Memory(rss_bytes=info.rss, uss_bytes=getattr(info, "uss", None))


def parents() -> dict[int, int]:
    """The parent of every process."""
    import psutil

    return {process.pid: process.info["ppid"] for process in psutil.process_iter(["ppid"])}


def stat(pid: int) -> tuple[int, str, int, int, int] | None:
    """Parent, state, start, CPU time and that of reaped children, in ticks; ``None`` where it is gone."""
    import psutil

    ticks_per_s = os.sysconf("SC_CLK_TCK")
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            state = {"running": "R", "zombie": "Z", "dead": "X"}.get(process.status(), "S")
            own = times.user + times.system
            reaped = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            moments = (process.create_time(), own, reaped)
            started, own_ticks, reaped_ticks = (round(moment * ticks_per_s) for moment in moments)
            return process.ppid(), state, started, own_ticks, reaped_ticks
    except psutil.Error:
        return None

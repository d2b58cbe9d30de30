"""The job that the watch itself started: how it is told to end, and how it ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

Job = subprocess.Popen[bytes]


def as_a_shell_says(code: int) -> int:
    """128 + n for signal n."""
    return code if code >= 0 else 128 - code


def children_cpu_s() -> float:
    """Of the children that were waited for, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def signals_go_to(job: Job) -> Iterator[None]:
    """Meanwhile the job is who is told to end; Ctrl-C in a terminal reaches it without our help."""

    def forward(number: int, _frame: object) -> None:
        from_terminal = number == signal.SIGINT and _in_foreground()
        if not from_terminal and job.poll() is None:
            job.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False

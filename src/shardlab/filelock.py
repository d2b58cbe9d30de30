"""One writer at a time on a file that processes of this node, or of several, append to."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shardlab.errors import RunFailed
from shardlab.world import host_name

DEADLINE_S = 60.0
"""A lock is held for the time of one write; a wait as long as this means that its holder hangs."""

_NO_FLOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Open ``path``, created if need be, for reading and appending; its descriptor is this process's alone.

    The lock is ``flock`` on the file itself, so it ends with its holder. On a file system without ``flock``
    it is a file ``<name>.lock`` that names its holder; that of a dead process of this node is taken over.
    Raises RunFailed where the lock stays taken for ``DEADLINE_S``.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            with _exclusive(fd, path):
                if _is_named(fd, path):
                    yield fd
                    return
        finally:
            os.close(fd)


def _is_named(fd: int, path: Path) -> bool:
    """False where the file was renamed or removed by the holder this process waited for."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _exclusive(fd: int, path: Path) -> Iterator[None]:
    lock_file = path.with_name(path.name + ".lock")
    by_flock = _wait(lambda: _flock(fd), path, "another process holds it; end that process")
    if not by_flock:
        _wait(lambda: _create(lock_file), path, f"if no process of the run is alive, remove {lock_file}")
    try:
        yield
    finally:
        if by_flock:
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough where a fork has copied the descriptor
        else:
            lock_file.unlink()


def _wait(attempt: Callable[[], bool | None], path: Path, cure: str) -> bool:
    """Repeat ``attempt`` until it says something other than ``None``, at growing intervals up to 20 ms."""
    deadline, pause_s = time.monotonic() + DEADLINE_S, 0.0005
    while (answer := attempt()) is None:
        if time.monotonic() > deadline:
            raise RunFailed(f"{path}: could not be locked within {DEADLINE_S:g} s. Cure: {cure}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)
    return answer


def _flock(fd: int) -> bool | None:
    """True with the lock taken, ``None`` while another holds it, False where there are no such locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return False
        raise
    return True


def _create(lock_file: Path) -> bool | None:
    """True with the lock file created, ``None`` while another's is there."""
    try:
        fd = os.open(lock_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        _remove_if_stale(lock_file)
        return None
    try:
        with os.fdopen(fd, "w") as file:
            file.write(f"{os.getpid()} {host_name()}")
    except OSError:
        lock_file.unlink()  # a lock that names no holder would never be taken over
        raise
    return True


def _remove_if_stale(lock_file: Path) -> None:
    if not _is_stale(lock_file):
        return
    # Between this check and the removal another process may take the lock over, so one at a time does both.
    breaker = lock_file.with_name(lock_file.name + ".breaking")
    try:
        os.close(os.open(breaker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return
    try:
        if _is_stale(lock_file):
            lock_file.unlink()
    finally:
        breaker.unlink()


def _is_stale(lock_file: Path) -> bool:
    """True where the holder was a process of this node and is dead."""
    try:
        pid, _, host = lock_file.read_text().partition(" ")
    except FileNotFoundError:
        return False
    if host != host_name() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False  # alive, and another user's
    return False

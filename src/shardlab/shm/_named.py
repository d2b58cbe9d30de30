"""A file with a name where the system has no memory files: in memory where it fits, else in the temporary folder.

Removed when its holder ends. What a killed holder left is removed by the next one: the lock on it, which the
kernel lets go of, says whether somebody still holds it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

SUFFIX = ".shardlab"
IN_MEMORY = Path("/dev/shm")


def create(name: str, size: int) -> tuple[int, str]:
    """A new empty file that ``size`` bytes have room for: descriptor and path."""
    folder = _folder_for(size)
    _sweep(folder)
    # Under another ending until it is locked, so that nobody sweeps it meanwhile.
    fd, unlocked = tempfile.mkstemp(prefix=f"shardlab-{name}-", dir=folder)
    fcntl.flock(fd, fcntl.LOCK_EX)
    path = unlocked + SUFFIX
    os.rename(unlocked, path)
    atexit.register(_remove_if_mine, path, os.getpid())
    return fd, path


def remove(path: str) -> None:
    """Take the name away; who has the file mapped keeps it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _folder_for(size: int) -> Path:
    with contextlib.suppress(OSError):
        room = os.statvfs(IN_MEMORY)
        if room.f_bavail * room.f_frsize > size:
            return IN_MEMORY
    return Path(tempfile.gettempdir())


def _sweep(folder: Path) -> None:
    for path in folder.glob(f"shardlab-*{SUFFIX}"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(fd)


def _remove_if_mine(path: str, pid: int) -> None:
    if os.getpid() == pid:
        remove(path)

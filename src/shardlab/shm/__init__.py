"""Memory files: bytes that all processes of a node map, and that vanish with the last of them.

A Linux memory file (``memfd_create``) has no name in any file system: it does not count against a
container's small /dev/shm, leaves nothing behind after SIGKILL, and shows by name in ``smaps``. Other
processes open it through ``/proc/<pid>/fd/<n>`` of the process that made it, which only the same user may.
Where that is refused, or where the number means another process (a process namespace of its own), the
descriptor comes over a local socket. Without memory files a file with a name stands in.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardlab.errors import RunFailed
from shardlab.shm import _named, _offer
from shardlab.shm._room import refuse_more_than_there_is

__all__ = ["NONCE_BYTES", "Handle", "MemoryFile", "attach", "attach_shared", "create_shared", "withdraw"]

NONCE_BYTES = 16
_SEALS = (
    0x10 | 0x2 | 0x4
)  # F_SEAL_FUTURE_WRITE, F_SEAL_SHRINK, F_SEAL_GROW: whoever maps it later cannot change it
_F_ADD_SEALS = 1033


@dataclass(frozen=True)
class Handle:
    """Where a memory file is found: an open descriptor of a living process, checked by inode and nonce.

    ``socket``: the address at which that process hands the descriptor out; ``path``: of a file with a name.
    """

    pid: int
    fd: int
    nbytes: int
    inode: int
    nonce: str
    socket: str = ""
    path: str = ""


class MemoryFile:
    """A memory file being filled. ``buffer`` (uint8) is writable until :meth:`seal`."""

    def __init__(self, name: str, nbytes: int) -> None:
        refuse_more_than_there_is(nbytes)
        self.nbytes = nbytes
        self.fd, self._path = _new(name, nbytes + NONCE_BYTES)
        try:
            getattr(os, "posix_fallocate", _truncate)(self.fd, 0, nbytes + NONCE_BYTES)
        except OSError as error:
            _close(self.fd, self._path)
            raise RunFailed(
                f"a shared copy needs {nbytes / 2**20:.0f} MiB of memory, refused: {error.strerror}"
            ) from None
        self._map = mmap.mmap(self.fd, nbytes + NONCE_BYTES)
        self.nonce = os.urandom(NONCE_BYTES)
        self._map[nbytes:] = self.nonce
        self.buffer: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, nbytes)

    def seal(self) -> Handle:
        """From here on no process may change the bytes; the descriptor stays open while this one lives."""
        del self.buffer
        self._map.close()
        if not self._path:
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _SEALS)
        return _handle(self.fd, self.nbytes, self.nonce, self._path)


MAPPED_AT_ONCE_BYTES = 16 << 30
"""Up to here all pages are entered into a process's table when it attaches, some 0.1 s for a GiB. Otherwise the first
touch of each few would cost microseconds in the middle of an epoch, and a shuffled one touches them one by one."""
_MADV_POPULATE_READ = 22  # Linux 5.14; the mmap module has no name for it


def attach(handle: Handle) -> NDArray[np.uint8]:
    """The bytes of a sealed memory file, shape (nbytes,): shared until written, then a private page each.

    Raises RunFailed where the process that holds it is gone or its number belongs to another process.
    """
    fd = _open(handle, os.O_RDONLY)
    try:
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        size = handle.nbytes + NONCE_BYTES
        mapped = mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    if size <= MAPPED_AT_ONCE_BYTES and sys.platform == "linux":
        with contextlib.suppress(OSError):  # an older kernel: pages are mapped as they are touched
            mapped.madvise(_MADV_POPULATE_READ)
    return np.frombuffer(mapped, np.uint8, handle.nbytes)


def create_shared(name: str, nbytes: int) -> Handle:
    """A memory file of zeros that all may write to; pages that nobody writes take no memory."""
    fd, path = _new(name, nbytes + NONCE_BYTES)
    os.ftruncate(fd, nbytes + NONCE_BYTES)
    nonce = os.urandom(NONCE_BYTES)
    os.pwrite(fd, nonce, nbytes)
    return _handle(fd, nbytes, nonce, path)


def attach_shared(handle: Handle) -> NDArray[np.uint8]:
    """The bytes of a file of :func:`create_shared`: what one process writes all see. Raises as attach does."""
    fd = _open(handle, os.O_RDWR)
    try:
        mapped = mmap.mmap(fd, handle.nbytes + NONCE_BYTES)
    finally:
        os.close(fd)
    return np.frombuffer(mapped, np.uint8, handle.nbytes)


def withdraw(handle: Handle) -> None:
    """In the process that made the file: nobody can attach it any more. What is mapped stays."""
    if handle.pid == os.getpid():
        _offer.withdraw(handle.nonce)
        _close(handle.fd, handle.path)


def _new(name: str, size: int) -> tuple[int, str]:
    """Descriptor of a new file, and its path where it has one."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"shardlab-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), ""
    return _named.create(name, size)


def _handle(fd: int, nbytes: int, nonce: bytes, path: str) -> Handle:
    address = "" if path else _offer.offer(nonce.hex(), fd)
    return Handle(os.getpid(), fd, nbytes, os.fstat(fd).st_ino, nonce.hex(), address, path)


def _open(handle: Handle, flags: int) -> int:
    """A descriptor of the announced file, whichever way leads to it."""
    if handle.path:
        return _checked(handle, handle.path, lambda: os.open(handle.path, flags))
    where = f"/proc/{handle.pid}/fd/{handle.fd}"
    try:
        return _checked(handle, where, lambda: os.open(where, flags))
    except RunFailed as error:
        if handle.socket:
            with contextlib.suppress(OSError, RunFailed):
                return _checked(handle, "socket", lambda: _offer.receive(handle.socket, handle.nonce))
        raise error from None


def _checked(handle: Handle, where: str, opened: Callable[[], int]) -> int:
    try:
        fd = opened()
    except OSError as error:
        raise RunFailed(
            f"the shared copy held by process {handle.pid} cannot be opened ({error.strerror}): "
            "that process ended, or lives in another process namespace"
        ) from None
    stat = os.fstat(fd)
    said = ""
    if stat.st_ino != handle.inode or stat.st_size != handle.nbytes + NONCE_BYTES:
        said = "another file has its place"
    elif os.pread(fd, NONCE_BYTES, handle.nbytes) != bytes.fromhex(handle.nonce):
        said = "its nonce differs"
    if said:
        os.close(fd)
        raise RunFailed(f"{where} is not the shared copy that was announced: {said}")
    return fd


def _close(fd: int, path: str) -> None:
    if path:
        _named.remove(path)
    os.close(fd)


def _truncate(fd: int, _offset: int, size: int) -> None:
    os.ftruncate(fd, size)

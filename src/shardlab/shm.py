"""Memory files: bytes that all processes of a node map, and that vanish with the last of them.

A Linux memory file (``memfd_create``) has no name in any file system: it does not count against a
container's small /dev/shm, leaves nothing behind after SIGKILL, and shows by name in ``smaps``. Other
processes open it through ``/proc/<pid>/fd/<n>`` of the process that made it, which only the same user may.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardlab.errors import RunFailed

NONCE_BYTES = 16
_SEALS = (
    0x10 | 0x2 | 0x4
)  # F_SEAL_FUTURE_WRITE, F_SEAL_SHRINK, F_SEAL_GROW: whoever maps it later cannot change it
_F_ADD_SEALS = 1033


@dataclass(frozen=True)
class Handle:
    """Where a memory file is found: an open descriptor of a living process, checked by inode and nonce."""

    pid: int
    fd: int
    nbytes: int
    inode: int
    nonce: str


class MemoryFile:
    """A memory file being filled. ``buffer`` (uint8) is writable until :meth:`seal`."""

    def __init__(self, name: str, nbytes: int) -> None:
        _refuse_more_than_there_is(nbytes)
        self.nbytes = nbytes
        self.fd = os.memfd_create(f"shardlab-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.fd, 0, nbytes + NONCE_BYTES)
        except OSError as error:
            os.close(self.fd)
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
        fcntl.fcntl(self.fd, _F_ADD_SEALS, _SEALS)
        return Handle(os.getpid(), self.fd, self.nbytes, os.fstat(self.fd).st_ino, self.nonce.hex())


def _refuse_more_than_there_is(nbytes: int) -> None:
    """A memory file has no size limit of its own: the kernel would fill it until it has to kill somebody."""
    info = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = sum(int(info[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
    if nbytes > free:
        raise RunFailed(
            f"a shared copy needs {nbytes / 2**20:.0f} MiB of memory, {free / 2**20:.0f} MiB are free: "
            "use --store mmap"
        )


def attach(handle: Handle) -> NDArray[np.uint8]:
    """The bytes of a sealed memory file, shape (nbytes,): shared until written, then a private page each.

    Raises RunFailed where the process that holds it is gone or its number belongs to another process.
    """
    path = f"/proc/{handle.pid}/fd/{handle.fd}"
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise RunFailed(
            f"the shared copy held by process {handle.pid} cannot be opened ({error.strerror}): "
            "that process ended, or lives in another process namespace"
        ) from None
    try:
        size = handle.nbytes + NONCE_BYTES
        stat = os.fstat(fd)
        if stat.st_ino != handle.inode or stat.st_size != size:
            raise RunFailed(f"{path} is not the shared copy that was announced: another file has its place")
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        mapped = mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    if mapped[handle.nbytes :] != bytes.fromhex(handle.nonce):
        raise RunFailed(f"{path} is not the shared copy that was announced: its nonce differs")
    return np.frombuffer(mapped, np.uint8, handle.nbytes)

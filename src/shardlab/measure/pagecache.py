"""Pages of files in memory: counted without reading them, brought in, sent out."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PROT_NONE, _MAP_SHARED = 0, 1
_WINDOW_BYTES = 1 << 30  # of a file, examined at a time: 256 KiB of answers
_CHUNK_BYTES = 1 << 20
_RESIDENT = bytes(value & 1 for value in range(256))  # mincore answers in the lowest bit
_MAP_FAILED = ctypes.c_void_p(-1).value


def resident_bytes(path: str | Path) -> int | None:
    """Bytes of the file that are in the page cache: whole pages, the last one up to the end of the file.

    ``None`` where the kernel does not say: elsewhere than Linux, and for a file that is neither ours nor
    writable (Linux 5.2 answers "all of it" there). Raises OSError where the file cannot be opened.
    """
    libc = _libc()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if libc is None or not (os.geteuid() in (0, info.st_uid) or os.access(path, os.W_OK)):
            return None
        windows = range(0, info.st_size, _WINDOW_BYTES)
        counts = [_resident(libc, descriptor, at, min(_WINDOW_BYTES, info.st_size - at)) for at in windows]
    finally:
        os.close(descriptor)
    return None if None in counts else sum(count for count in counts if count is not None)


def warm(path: str | Path) -> int:
    """Read the file once, chunk by chunk, so that it lies in the page cache. Returns the bytes read."""
    buffer = bytearray(_CHUNK_BYTES)
    total = 0
    with open(path, "rb", buffering=0) as file:
        _advise(file.fileno(), "POSIX_FADV_WILLNEED")
        while count := file.readinto(buffer):
            total += count
    return total


def evict(path: str | Path) -> None:
    """Ask the kernel to drop the file's clean pages; those that a process maps stay."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)  # dirty pages are not dropped
        _advise(descriptor, "POSIX_FADV_DONTNEED")
    finally:
        os.close(descriptor)


def allocated_bytes(pid: int, fd: int, root: Path = Path("/proc")) -> int:
    """Bytes allocated for the open file ``fd`` of a process, touched by a mapping or not. Raises OSError."""
    return os.stat(f"{root}/{pid}/fd/{fd}").st_blocks * 512


def _resident(libc: ctypes.CDLL, descriptor: int, at: int, length: int) -> int | None:
    page = os.sysconf("SC_PAGESIZE")
    pages = -(-length // page)
    # Without access no page is mapped in, so nobody's PSS changes.
    address = libc.mmap(None, length, _PROT_NONE, _MAP_SHARED, descriptor, at)
    if address == _MAP_FAILED:
        return None
    answers = (ctypes.c_ubyte * pages)()
    try:
        if libc.mincore(address, length, answers) != 0:
            return None
    finally:
        libc.munmap(address, length)
    flags = bytes(answers).translate(_RESIDENT)
    past_end = pages * page - length if flags[-1] else 0
    return flags.count(1) * page - past_end


def _libc() -> ctypes.CDLL | None:
    if os.uname().sysname != "Linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [pointer, size]
    libc.mincore.argtypes = [pointer, size, pointer]
    return libc


def _advise(descriptor: int, name: str) -> None:
    advice = getattr(os, name, None)
    if advice is not None:
        os.posix_fadvise(descriptor, 0, 0, advice)

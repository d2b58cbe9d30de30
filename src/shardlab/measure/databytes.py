"""Bytes of the dataset that the PSS of its processes does not show: of memory files, and of files on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shardlab.measure import pagecache, procfs
from shardlab.measure.procfs import PROC, MappedFile
from shardlab.measure.tree import Proc

_IN_MEMORY = ("tmpfs ", "ramfs ", "devtmpfs ")


@dataclass(frozen=True)
class DataReading:
    """Bytes that the PSS of the tree does not show. ``None`` is unknown, and ``reasons`` says why."""

    memfd_untouched_bytes: int | None = 0
    file_resident_bytes: int | None = 0
    reasons: dict[str, str] = field(default_factory=dict)


class _MemoryFile(msgspec.Struct):
    pid: int
    fd: int


class _Store(msgspec.Struct):
    """The part of ``store.json`` that says where shared bytes lie; other fields are the store's own."""

    memfd: _MemoryFile | None = None
    skeleton: _MemoryFile | None = None
    files: tuple[str, ...] = ()


def read_data(
    store_file: Path, dataset_files: Iterable[str], procs: Sequence[Proc], root: Path = PROC
) -> DataReading:
    """Count the memory files and the files of the dataset, each once.

    What the tree maps of a memory file is in its PSS already; the rest of the allocated blocks is added
    here. Of a file on disk all resident pages count, mapped or not, and whoever else maps them.
    """
    reasons: dict[str, str] = {}
    store = _Store()
    try:
        store = msgspec.json.decode(store_file.read_bytes(), type=_Store)
    except FileNotFoundError:
        pass  # nothing is shared
    except (OSError, msgspec.DecodeError) as error:
        why = f"{store_file.name} cannot be read: {error}"
        return DataReading(None, None, {"memfd_untouched_bytes": why, "file_resident_bytes": why})
    memory_files = [memfd for memfd in (store.memfd, store.skeleton) if memfd is not None]
    untouched = _memory_files(memory_files, procs, root, reasons)
    resident = _files([*store.files, *dataset_files], procs, root, reasons)
    return DataReading(untouched, resident, reasons)


def _memory_files(
    files: list[_MemoryFile], procs: Sequence[Proc], root: Path, reasons: dict[str, str]
) -> int | None:
    total = 0
    for memfd in files:
        try:
            info = os.stat(f"{root}/{memfd.pid}/fd/{memfd.fd}")
            total += max(info.st_blocks * 512 - _mapped_bytes(info, procs, root), 0)
        except OSError as error:
            reasons["memfd_untouched_bytes"] = f"memory file of process {memfd.pid}: {error.strerror}"
            return None
    return total


def _files(paths: list[str], procs: Sequence[Proc], root: Path, reasons: dict[str, str]) -> int | None:
    total = 0
    seen: set[tuple[int, int]] = set()
    for path in paths:
        try:
            info = os.stat(path)
            resident = 0 if (info.st_dev, info.st_ino) in seen else pagecache.resident_bytes(path)
        except OSError as error:
            reasons["file_resident_bytes"] = f"{path}: {error.strerror}"
            return None
        if resident is None:
            reasons["file_resident_bytes"] = f"{path}: the kernel does not say which pages are in memory"
            return None
        if resident and _device(info) in _memory_devices(root):
            # Its mapped pages are shmem in the PSS of the tree already.
            resident = max(resident - _mapped_bytes(info, procs, root), 0)
        seen.add((info.st_dev, info.st_ino))
        total += resident
    return total


def _mapped_bytes(info: os.stat_result, procs: Sequence[Proc], root: Path) -> int:
    """What the PSS of the tree shows of a file. Unreadable processes are passed over: they show nothing."""
    device, total = _device(info), 0

    def is_file(mapped: MappedFile) -> bool:
        return mapped.device == device and mapped.inode == info.st_ino

    for proc in procs:
        try:
            total += sum(procfs.smaps_named(procfs.read(proc.pid, "smaps", root), is_file).values())
        except OSError:
            continue
    return total


def _device(info: os.stat_result) -> str:
    """As ``smaps`` prints it: ``00:01``."""
    return f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}"


def _memory_devices(root: Path) -> set[str]:
    """Devices of the file systems whose files are memory."""
    try:
        lines = procfs.read("self", "mountinfo", root).splitlines()
    except OSError:
        return set()
    # 26 24 0:24 / /dev/shm rw,nosuid - tmpfs tmpfs rw
    found = [line.split()[2].split(":") for line in lines if line.partition(" - ")[2].startswith(_IN_MEMORY)]
    return {f"{int(major):02x}:{int(minor):02x}" for major, minor in found}

"""Batches on their way from workers: shared memory that is mapped, or that nobody maps while it waits in a queue.

By default torch passes the descriptor of a file it has unlinked. Between the worker that filled it and the process
that takes it the memory belongs to no mapping, counts in no RSS or PSS, and is found among the open files alone::

    worker 0   /proc/21/fd/14 -> /dev/shm/torch_21_4031_7 (deleted)     waits in the queue
    rank       maps           -> /dev/shm/torch_21_4029_6 (deleted)     is being used
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from shardlab.measure import procfs
from shardlab.measure.census.pages import TORCH_BATCH, mappings
from shardlab.measure.procfs import PROC


def on_their_way(pids: Iterable[int], workers: Container[int], root: Path = PROC) -> int:
    """Bytes of batches that ``workers`` made, each counted once, of processes whose files and maps may be read."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):
            sizes |= dict(_open(f"{root}/{pid}/fd", workers))
        with suppress(OSError):
            for m in mappings(procfs.read(pid, "maps", root)):
                if _is_batch(m.path, workers):
                    major, minor = (int(number, 16) for number in m.device.split(":"))
                    sizes.setdefault((os.makedev(major, minor), m.inode), m.end - m.start)
    return sum(sizes.values())


def _open(folder: str, workers: Container[int]) -> Iterator[tuple[tuple[int, int], int]]:
    for name in os.listdir(folder):
        with suppress(OSError):  # closed meanwhile
            if _is_batch(os.readlink(f"{folder}/{name}"), workers):
                info = os.stat(f"{folder}/{name}")
                yield (info.st_dev, info.st_ino), info.st_blocks * 512


def _is_batch(path: str, workers: Container[int]) -> bool:
    match = TORCH_BATCH.match(path)
    return match is not None and int(match[1]) in workers

"""One reading of a whole process tree, and what it adds up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import TypeVar

from shardlab.measure import procfs
from shardlab.measure.databytes import DataReading
from shardlab.measure.procfs import PROC
from shardlab.measure.tree import Proc
from shardlab.records import Memory

_K = TypeVar("_K")
_NOTHING = Memory(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class TreeReading:
    """Memory of each process that could be read; one that ended meanwhile is in neither figure."""

    memory: dict[Proc, Memory]
    unreadable: int

    @property
    def total(self) -> Memory:
        """The sum over the processes."""
        return reduce(add, self.memory.values(), _NOTHING) if self.memory else Memory()


@dataclass(frozen=True)
class HoldReading:
    """What the monitor read while the ranks of a node were held; ``hold-EPOCH.json`` in the run's folder.

    ``used_bytes`` = anon + shmem + memfd_untouched + file_resident: each page of the tree and each page of
    the dataset's own files once, and no page of program files. ``by_rank`` is a rank's process and its
    workers. ``None`` is unknown, and ``reasons`` says why; unreadable processes make the sums lower bounds.
    ``census_duplicate_bytes`` is what by content is there more than once, where a census was asked for.
    """

    epoch: int
    t_s: float
    complete: bool
    absent_ranks: tuple[int, ...]
    processes: int
    unreadable: int
    used_bytes: int | None
    anon_bytes: int | None
    shmem_bytes: int | None
    memfd_untouched_bytes: int | None
    file_resident_bytes: int | None
    retained_bytes: int | None
    pss_total_bytes: int | None
    by_role: dict[str, Memory]
    by_rank: dict[int, Memory]
    rank_process: dict[int, Memory]
    hold_s: float
    census_duplicate_bytes: int | None = None
    census_cpu_s: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)


def read_tree(procs: Iterable[Proc], root: Path = PROC) -> TreeReading:
    """Read the memory of each process once."""
    memory: dict[Proc, Memory] = {}
    unreadable = 0
    for proc in procs:
        try:
            memory[proc] = procfs.memory(proc.pid, root)
        except ProcessLookupError:
            continue
        except OSError:
            unreadable += 1
    return TreeReading(memory, unreadable)


def summarise(
    after: TreeReading,
    retained_bytes: int,
    data: DataReading,
    *,
    epoch: int,
    t_s: float,
    hold_s: float,
    absent_ranks: Iterable[int],
    reasons: dict[str, str],
) -> HoldReading:
    """The figures that follow from reading the tree and the data, ``retained_bytes`` trimmed before."""
    total = after.total
    anon, shmem = total.pss_anon_bytes, total.pss_shmem_bytes
    absent = tuple(sorted(absent_ranks))
    parts = (anon, shmem, data.memfd_untouched_bytes, data.file_resident_bytes)
    return HoldReading(
        epoch=epoch,
        t_s=t_s,
        complete=not absent,
        absent_ranks=absent,
        processes=len(after.memory) + after.unreadable,
        unreadable=after.unreadable,
        used_bytes=None if None in parts else sum(part for part in parts if part is not None),
        anon_bytes=anon,
        shmem_bytes=shmem,
        memfd_untouched_bytes=data.memfd_untouched_bytes,
        file_resident_bytes=data.file_resident_bytes,
        retained_bytes=None if anon is None else retained_bytes,
        pss_total_bytes=total.pss_bytes,
        by_role=_grouped((proc.role, memory) for proc, memory in after.memory.items()),
        by_rank=_ranks(after, ("rank", "worker")),
        rank_process=_ranks(after, ("rank",)),
        hold_s=hold_s,
        reasons={**reasons, **data.reasons, **_reasons(after, data, absent)},
    )


def _reasons(after: TreeReading, data: DataReading, absent: tuple[int, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    if absent:
        found["absent_ranks"] = f"not held when memory was read: rank {', '.join(map(str, absent))}"
    if after.unreadable:
        processes = after.unreadable + len(after.memory)
        found["unreadable"] = f"{after.unreadable} of {processes} processes unreadable: sums are lower bounds"
    if after.total.pss_anon_bytes is None or after.total.pss_shmem_bytes is None:
        found["used_bytes"] = "no process could be read, or the kernel does not split PSS"
    elif data.reasons:
        found["used_bytes"] = "; ".join(data.reasons.values())
    return found


def _ranks(reading: TreeReading, roles: tuple[str, ...]) -> dict[int, Memory]:
    chosen = ((p.rank, memory) for p, memory in reading.memory.items() if p.role in roles)
    return _grouped((rank, memory) for rank, memory in chosen if rank is not None)


def _grouped(pairs: Iterable[tuple[_K, Memory]]) -> dict[_K, Memory]:
    sums: dict[_K, Memory] = {}
    for key, memory in pairs:
        sums[key] = sums[key] + memory if key in sums else memory
    return sums

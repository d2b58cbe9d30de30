"""What a census found, as values."""

from __future__ import annotations

from dataclasses import dataclass

HEAP, ARRAY, SHARED, IN_FLIGHT, FILE = "heap", "array", "shared memory", "in flight", "file"
KINDS = (HEAP, ARRAY, SHARED, IN_FLIGHT, FILE)
"""Kinds of mapping: the allocator's heap and arenas, other anonymous memory, shared memory, the shared memory
in which torch passes batches from workers, and files that hold no program."""


@dataclass(frozen=True)
class Repeat:
    """Content that is in memory more than once, and who holds it.

    Each of ``holders`` is a group of processes (pids, ascending) that share one copy among themselves: a rank
    that works alone, or a rank and the workers it forked. ``bytes`` is the size of that content, counted once;
    ``duplicate_bytes`` is what the copies beyond the first take up.

    ::

        four ranks, each with an array of its own    holders ((11,), (12,), (13,), (14,))
        two ranks, two forked workers each           holders ((11, 21, 22), (12, 23, 24))
    """

    holders: tuple[tuple[int, ...], ...]
    bytes: int
    duplicate_bytes: int
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Held:
    """Of one process, by kind of mapping: bytes that are resident, that it alone maps, that another copy repeats.

    ``object_bytes`` is how many of the exclusive ones hold Python objects, told by the pointers in them and
    estimated from one page in 32: content cannot tell whether two processes hold the same objects, as
    these point to each other by addresses that differ.
    """

    resident_bytes: dict[str, int]
    exclusive_bytes: dict[str, int]
    repeated_bytes: dict[str, int]
    object_bytes: int = 0


@dataclass(frozen=True)
class Census:
    """Resident memory of a job by content; all in bytes, sampled pages scaled up.

    ``bytes_by_holders`` maps a number of processes to the bytes of content that exactly so many of them map, in
    one copy or in several; zero pages are apart, in ``zero_bytes``. ``duplicate_bytes`` is what would be saved
    if all content that several groups of processes hold were held once. ``sampled_ratio`` is the share of pages
    that was read, and ``error_bytes`` the half-width of a 95 % interval of ``duplicate_bytes`` that sampling
    costs, 0 where all were read. ``unreadable`` gives the reason for each process whose pages could not be read.
    ``frames_known`` tells whether the kernel gave frame numbers (it does to a privileged reader).
    """

    t_s: float
    processes: int
    duplicate_bytes: int
    error_bytes: int
    bytes_by_holders: dict[int, int]
    zero_bytes: int
    repeats: tuple[Repeat, ...]
    by_process: dict[int, Held]
    unreadable: dict[int, str]
    sampled_ratio: float
    read_bytes: int
    frames_known: bool
    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Subject:
    """A process to be counted. ``family`` is the pid from which it descends by forks alone, ``rank`` its rank.

    ``no_data`` has the pages that are passed over, as they are freed, or a batch: runs of page numbers, the first and
    the one after the last, in order.
    """

    pid: int
    family: int
    rank: int | None = None
    is_worker: bool = False
    no_data: tuple[tuple[int, int], ...] = ()

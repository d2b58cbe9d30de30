"""What is known of a watched job, as values; causes are found from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardlab.measure.census.result import Census
from shardlab.records import Memory

HOLDS, LIKELY = "holds", "likely"
"""Certainty of a cause: its bytes were seen by content, or it is inferred from sizes and roles."""


@dataclass(frozen=True)
class Member:
    """One process of a job; ``(pid, start_ticks)`` names it, as pids are used again.

    ``role`` is launcher, agent, rank, worker, forkserver, tracker or other. ``rank`` is the rank that it is or
    belongs to. ``start_method`` is how it came to be: fork (a copy of its parent), forkserver (a copy of a
    forkserver), spawn (a new interpreter of multiprocessing) or program (any other new program); None where that
    cannot be read. ``family`` is the pid of the process from which it descends by forks alone: members of a family
    share pages from before they parted.
    """

    pid: int
    start_ticks: int
    ppid: int
    role: str
    rank: int | None
    worker: int | None
    start_method: str | None
    family: int
    name: str


@dataclass(frozen=True)
class Seen:
    """What was seen of a member: ``first`` soon after it joined, ``last`` lately; ``None`` where unreadable.

    Times are seconds since the watch began; ``left_s`` is None while it lives.
    """

    member: Member
    joined_s: float
    left_s: float | None
    first: Memory | None
    last: Memory | None
    rss_bytes: int | None
    by_kind: dict[str, int] = field(default_factory=dict)
    """PSS by kind of mapping, as in ``census.result.KINDS``, and "program"; empty where smaps was not read."""


@dataclass(frozen=True)
class Limit:
    """Something that can run out. ``used`` leaves out what the kernel would drop at once (clean page cache)."""

    name: str
    where: str
    used: int
    limit: int
    unit: str = "bytes"

    @property
    def ratio(self) -> float:
        """How full it is, 1 is full."""
        return self.used / self.limit if self.limit else 0.0


@dataclass(frozen=True)
class Facts:
    """All that is known of a job at a time. ``unreadable`` has the reason for each process that cannot be read."""

    t_s: float
    members: tuple[Seen, ...]
    limits: tuple[Limit, ...]
    census: Census | None
    dataset_bytes: int | None = None
    unreadable: dict[int, str] = field(default_factory=dict)
    out_of_memory_kills: int | None = None
    """How often the kernel ended a process of the job's cgroup for lack of memory while it was watched."""
    machine_kills: int | None = None
    """The same of all processes of the machine; asked where no cgroup tells."""
    killed_s: float | None = None
    """When either was first seen."""
    batch_bytes: int = 0
    """Batches that workers have made and nobody has let go of yet, when the census was taken."""
    retained_bytes: Mapping[int, int] = field(default_factory=dict)
    """What allocators keep of what was freed, by pid, when the census was taken."""


@dataclass(frozen=True)
class Cause:
    """Why memory is held, what shows it, and what would change it. ``bytes`` is None where it cannot be said."""

    name: str
    evidence: str
    bytes: int | None
    cure: str
    certainty: str
    pids: tuple[int, ...] = ()
    since_s: float | None = None

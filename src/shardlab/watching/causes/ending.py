"""What may end a job, or has ended part of it."""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.watching.facts import HOLDS, LIKELY, Cause, Facts, Limit
from shardlab.words import many, mib

NEAR = 0.85
CURES = {
    "memory limit": "hold fewer copies, lower prefetch and batches, or ask for more memory",
    "memory and swap limit": "hold fewer copies, lower prefetch and batches, or ask for more memory",
    "swap limit": "hold fewer copies: a job that swaps waits for the disk, and is ended where it may swap no more",
    "memory": "hold fewer copies, lower prefetch and batches, or use a larger machine",
    "swap": "hold fewer copies: a job that swaps waits for the disk",
    "shared memory": "docker run --shm-size, a lower prefetch_factor, or fewer workers",
    "open files": "ulimit -n, or torch.multiprocessing.set_sharing_strategy('file_system')",
    "memory mappings": "sysctl vm.max_map_count, fewer tensors in flight, or one array rather than many mapped files",
}
OF_GROUPS = ("memory limit", "memory and swap limit")
OF_MEMORY = (*OF_GROUPS, "memory")


def causes(facts: Facts) -> Iterator[Cause]:
    """Limits that are nearly reached, and kills for lack of memory."""
    for limit in facts.limits:
        if limit.ratio >= NEAR:
            yield _near(facts, limit, f"{limit.ratio:.0%} full", HOLDS)
    for limit in _reached_unseen(facts):
        seen = f"{limit.ratio:.0%} full when last read, shortly before the kernel ended a process"
        yield _near(facts, limit, seen, LIKELY)
    if facts.out_of_memory_kills:
        yield Cause(
            "out-of-memory-kill",
            f"the kernel ended {many(facts.out_of_memory_kills, 'process', 'processes')} of the "
            f"job's cgroup for lack of memory, {facts.killed_s or facts.t_s:.0f} s after the watch began",
            None, CURES["memory limit"], HOLDS, since_s=facts.killed_s or facts.t_s,
        )  # fmt: skip


def _near(facts: Facts, limit: Limit, how: str, certainty: str) -> Cause:
    return Cause(
        "near-limit", f"{limit.name} of {limit.where}: {_amounts(limit)}, {how}",
        limit.used if limit.unit == "bytes" else None, CURES.get(limit.name, CURES["memory"]), certainty,
        since_s=facts.t_s,
    )  # fmt: skip


def _reached_unseen(facts: Facts) -> list[Limit]:
    """The cgroup's limit, of several the fullest, where a process was ended that grew too fast to be seen near it."""
    seen = any(limit.ratio >= NEAR for limit in facts.limits if limit.name in OF_MEMORY)
    if seen or not facts.out_of_memory_kills:
        return []
    limits = (limit for limit in facts.limits if limit.name in OF_GROUPS)
    return sorted(limits, key=lambda limit: -limit.ratio)[:1]


def _amounts(limit: Limit) -> str:
    if limit.unit == "bytes":
        return f"{mib(limit.used)} of {mib(limit.limit)} MiB"
    return f"{limit.used:,} of {limit.limit:,}"

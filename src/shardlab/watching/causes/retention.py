"""Memory that processes have freed and still hold."""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.watching.causes import people
from shardlab.watching.facts import HOLDS, Cause, Facts
from shardlab.words import mib

LEAST_BYTES = 32 << 20


def causes(facts: Facts) -> Iterator[Cause]:
    """What allocators keep of what was freed, a list of tensors that became one array, say; bytes by pid."""
    kept = {pid: size for pid, size in facts.retained_bytes.items() if size >= LEAST_BYTES // 4}
    total = sum(kept.values())
    if total < LEAST_BYTES:
        return
    members = people.by_pid(facts)
    who = people.ranks(members[pid].rank for pid in kept if pid in members)
    yield Cause(
        "allocator-retention",
        f"processes of {who} freed {mib(total)} MiB that their allocator keeps for later: whole resident pages of "
        "its free chunks, whatever lies in them is no copy",
        total, "build arrays in place (np.empty, then fill) rather than from a list, call malloc_trim(0) once they "
        "are built, or set MALLOC_MMAP_THRESHOLD_=65536", HOLDS, tuple(sorted(kept)),
    )  # fmt: skip

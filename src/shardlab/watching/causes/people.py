"""Members by pid, and how they are named."""

from __future__ import annotations

from collections.abc import Iterable

from shardlab.watching.facts import Facts, Member
from shardlab.words import many, spans


def by_pid(facts: Facts) -> dict[int, Member]:
    """The members, those that live before those that left with the same pid."""
    seen = sorted(facts.members, key=lambda one: one.left_s is None)
    return {one.member.pid: one.member for one in seen}


def living(facts: Facts, *roles: str) -> list[Member]:
    """Members of these roles that have not left."""
    return [one.member for one in facts.members if one.left_s is None and one.member.role in roles]


def ranks(numbers: Iterable[int | None]) -> str:
    """``ranks 0-3``, ``rank 2``."""
    known = sorted({number for number in numbers if number is not None})
    if not known:
        return "the launcher"
    return f"rank{'' if len(known) == 1 else 's'} {spans(known)}"


def workers(of: Iterable[Member]) -> str:
    """``4 workers of ranks 0-1``."""
    members = list(of)
    return f"{many(len(members), 'worker')} of {ranks(m.rank for m in members)}"


def since(facts: Facts, pids: Iterable[int]) -> float | None:
    """When the last of these joined: since then the copies can all be there."""
    wanted = set(pids)
    return max((one.joined_s for one in facts.members if one.member.pid in wanted), default=None)

"""Copies that content cannot show, inferred from sizes: Python objects of equal value share no page.

Where a census was taken it says how many of a process's own bytes hold objects; where it could not be, all that a
process holds alone has to do, and the causes say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlab.measure.census.result import ARRAY, HEAP, Held
from shardlab.watching.causes import copied, people
from shardlab.watching.causes.copied import CURES, PICKLED, RANKS, WRITTEN
from shardlab.watching.facts import LIKELY, Cause, Facts, Member
from shardlab.words import mib

LEAST_BYTES = 32 << 20
LEAST_FRESH_BYTES = 64 << 20
"""For processes that began as new programs: these differ by the modules they import."""

OBJECTS, HEAPS, ALL = "Python objects", "small arrays and objects", "private memory"
INTERPRETER_BYTES = {OBJECTS: 220 << 20, HEAPS: 220 << 20, ALL: 250 << 20}
"""Of a rank that imported torch and transformers, and of a worker with torch, where none of the job shows more."""

ALIKE = 0.15
ABOUT_ONE = 0.75, 1.5
LEAST_PART = 0.1
LEAST_GROWN = 0.1


def causes(facts: Facts) -> Iterator[Cause]:
    """Of workers by how they were started, and of ranks."""
    workers, ranks = people.living(facts, "worker"), people.living(facts, "rank")
    yield from _copied_by_fork(facts, [m for m in workers if m.start_method == "fork"])
    yield from _pickled(facts, [m for m in workers if m.start_method in ("spawn", "forkserver")])
    if ranks and all(m.start_method == "fork" for m in ranks):
        yield from _copied_by_fork(facts, ranks)
    elif len(ranks) > 1:
        yield from _fresh(facts, RANKS, ranks)


def own_bytes(facts: Facts, what: str) -> dict[int, int]:
    """Bytes of each process that it alone holds, by a measure; all of them where content was not read."""
    own = {
        one.member.pid: one.last.uss_bytes
        for one in facts.members
        if one.left_s is None and one.last is not None and one.last.uss_bytes is not None
    }
    held = facts.census.by_process if facts.census is not None else {}
    return own | {pid: _measured(of, what) for pid, of in held.items()}


def seen_bytes(facts: Facts) -> dict[int, int]:
    """Bytes of each process that content showed to be in others too."""
    seen: dict[int, int] = {}
    for repeat in copied.of_dataset(facts):
        for pid in copied.holders(repeat):
            seen[pid] = seen.get(pid, 0) + repeat.bytes
    return seen


def _share(facts: Facts, pid: int, what: str) -> float:
    """The part of a measure in all that a process holds alone: as much of what was seen is taken to be of it."""
    held = facts.census.by_process.get(pid) if facts.census is not None else None
    alone = sum(held.exclusive_bytes.values()) if held else 0
    return min(1.0, _measured(held, what) / alone) if held and alone else 1.0


def _measured(held: Held, what: str) -> int:
    if what == OBJECTS:
        return held.object_bytes
    kinds = (HEAP,) if what == HEAPS else (HEAP, ARRAY)
    return sum(held.exclusive_bytes.get(kind, 0) for kind in kinds)


def _copied_by_fork(facts: Facts, members: Sequence[Member]) -> Iterator[Cause]:
    """Of a forked process every object page that it alone has was copied as it was written, or made since."""
    own = own_bytes(facts, OBJECTS)
    if facts.census is None:  # what it had when it was new is no copy, and a little grows in any process
        own = {pid: grown for pid, grown in _grown(facts).items() if grown >= LEAST_GROWN * own.get(pid, 0)}
    yield from _cause(facts, WRITTEN, members, {m.pid: own.get(m.pid, 0) for m in members}, LEAST_BYTES, OBJECTS)


def _grown(facts: Facts) -> dict[int, int]:
    """By how much each process came to hold more alone since it was first read."""
    ends = {one.member.pid: (one.first, one.last) for one in facts.members if one.left_s is None}
    return {
        pid: last.uss_bytes - first.uss_bytes
        for pid, (first, last) in ends.items()
        if first and last and first.uss_bytes is not None and last.uss_bytes is not None
    }


def _pickled(facts: Facts, workers: Sequence[Member]) -> Iterator[Cause]:
    """Of workers that were not forked: what they hold beyond an interpreter, and the first of copies that they share.

    Small arrays come to lie elsewhere in their pages when they are unpickled. So workers are seen to repeat each
    other and not the rank that they have it from, and of their copies the first is one, too.
    """
    of, found = {m.pid for m in workers}, list(_fresh(facts, PICKLED, workers))
    among = [repeat for repeat in copied.of_dataset(facts) if copied.holders(repeat) <= of]
    if not among:
        yield from found
        return
    pids = {pid for repeat in among for pid in copied.holders(repeat)}
    holders = [m for m in workers if m.pid in pids]
    first = sum(repeat.bytes for repeat in among)
    yield Cause(
        PICKLED,
        f"{people.workers(holders)} hold {mib(first)} MiB that repeat no rank page by page, as what is unpickled "
        "lies elsewhere in its pages: the first of these copies is one of what the ranks hold"
        + "".join(f"; {cause.evidence}" for cause in found),
        first + sum(cause.bytes or 0 for cause in found), CURES[PICKLED], LIKELY, tuple(sorted(of & pids)),
        people.since(facts, of & pids),
    )  # fmt: skip


def _fresh(facts: Facts, name: str, members: Sequence[Member]) -> Iterator[Cause]:
    """Of new interpreters: what they hold beyond one that has no data, by the measure that shows most."""
    found = []
    for what in (OBJECTS, ALL if name == PICKLED else HEAPS):
        own = own_bytes(facts, what)
        for base in _bases(facts, members, own, what):
            more = {m.pid: own[m.pid] - base for m in members if m.pid in own}
            found += list(_cause(facts, name, members, more, LEAST_FRESH_BYTES, what))
    yield from sorted(found, key=lambda cause: -(cause.bytes or 0))[:1]


def _bases(facts: Facts, members: Sequence[Member], own: dict[int, int], what: str) -> Iterator[int]:
    """What an interpreter holds that has no data: as much as a large one, or as the job's launcher or agent.

    The latter imports less, and is believed where what the others hold beyond it is about one dataset in each.
    """
    above = [own[m.pid] for m in people.living(facts, "launcher", "agent") if m.pid in own]
    yield max([INTERPRETER_BYTES[what], *above])
    size = facts.dataset_bytes
    if above and size and facts.census is not None:
        low, high = ABOUT_ONE
        if all(low * size <= own.get(m.pid, 0) - max(above) <= high * size for m in members):
            yield max(above)


def _cause(
    facts: Facts, name: str, members: Sequence[Member], more: dict[int, int], least: int, what: str
) -> Iterator[Cause]:
    """``more`` is how much each of the members may hold of its own; what content showed is told of elsewhere."""
    held = _inferred(facts, more, least, what)
    holders = [m for m in members if m.pid in held]
    of_ranks = name == RANKS
    few = len(held) < (max(len(more), 2) if of_ranks else 1)
    if few or (of_ranks and min(held.values()) < max(held.values()) * (1 - ALIKE)):
        return
    what = what if facts.census is not None else f"{ALL} (content was not read)"
    who = people.workers(holders) if holders[0].role == "worker" else people.ranks(m.rank for m in holders)
    method = "" if of_ranks else f", started by {'/'.join(sorted({m.start_method or 'unknown' for m in holders}))},"
    alike = ", about the same in each: copies, or parts of equal size" if of_ranks else ""
    total = (len(held) - 1) * min(held.values()) if of_ranks else sum(held.values())
    yield Cause(
        name, f"{who}{method} hold {_each([more[pid] for pid in held])} of {what} of their own{alike}", total,
        CURES[name], LIKELY, tuple(sorted(held)), people.since(facts, held),
    )  # fmt: skip


def _inferred(facts: Facts, more: dict[int, int], least: int, what: str) -> dict[int, int]:
    """Of each process that holds enough: what is not seen to be a copy, up to one dataset where its size is known."""
    seen, size = seen_bytes(facts), facts.dataset_bytes
    if size is None:
        left = {pid: own - round(seen.get(pid, 0) * _share(facts, pid, what)) for pid, own in more.items()}
        return {pid: part for pid, part in left.items() if part >= least}
    enough = max(min(least, size), LEAST_BYTES // 2)
    parts = {pid: min(own, size) - seen.get(pid, 0) for pid, own in more.items() if own >= enough}
    return {pid: part for pid, part in parts.items() if part >= size * LEAST_PART}


def _each(sizes: Sequence[int]) -> str:
    least, most = mib(min(sizes)), mib(max(sizes))
    return f"{most} MiB each" if least == most else f"{least} to {most} MiB each"

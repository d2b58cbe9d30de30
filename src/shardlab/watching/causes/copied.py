"""Copies that the census saw: content that several groups of processes hold, each for itself.

Of G groups that belong to R ranks, R - 1 copies are there because ranks hold copies, and G - R because workers do::

    two ranks, each with two spawned workers, all with an array of their own: 6 groups, 2 ranks
    ranks-hold-copies 1 x bytes, workers-hold-pickled-copies 4 x bytes

A process holds one dataset. Where its size is known, what a process repeats beyond that is other equal memory:
weights and gradients of a model, and what every interpreter holds, in the same processes as the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardlab.measure.census.result import HEAP, Census, Repeat
from shardlab.watching.causes import people
from shardlab.watching.facts import HOLDS, Cause, Facts, Member
from shardlab.words import many, mib

RANKS = "ranks-hold-copies"
WRITTEN = "workers-copied-by-reference-counting"
PICKLED = "workers-hold-pickled-copies"
NESTED = "nested-loaders"
COPIES = (RANKS, WRITTEN, PICKLED)

LEAST_RATIO = 0.02
LEAST_BYTES = 8 << 20
"""A repeat of less is no cause: the heaps of processes that run the same code repeat a few MiB of each other."""

CURES = {
    RANKS: "build it once and share it: `shardlab.share(build)`, or save it and open it with np.load(mmap_mode='r'); "
    "the weights of a model are in each rank by design",
    WRITTEN: "keep it in one numpy array or torch tensor instead of Python objects, whose reference counts are "
    "written when they are read: `shardlab.share(build)` does it",
    PICKLED: "hold it in torch tensors (they pass to workers as handles) or in a file: `shardlab.share(build)`; a "
    "numpy array or a list is pickled for each worker that is not forked",
}


def causes(facts: Facts) -> Iterator[Cause]:
    """A cause for each way in which what is repeated came to be, summed over the repeats."""
    if facts.census is None:
        return
    members = people.by_pid(facts)
    shares: dict[str, list[tuple[Repeat, int]]] = {}
    for repeat in of_dataset(facts):
        for name, number in _shares(repeat, members).items():
            shares.setdefault(name, []).append((repeat, number * repeat.bytes))
    for name, of in shares.items():
        pids = sorted({pid for repeat, _ in of for pid in holders(repeat)})
        yield Cause(
            name, _evidence(name, [one for one, _ in of], members), sum(size for _, size in of), CURES[name],
            HOLDS, tuple(pids), people.since(facts, pids),
        )  # fmt: skip


def repeats(census: Census) -> list[Repeat]:
    """Those that are no background, which grows with what processes hold."""
    alone = sum(sum(held.exclusive_bytes.values()) for held in census.by_process.values())
    least = max(LEAST_BYTES, LEAST_RATIO * alone / max(len(census.by_process), 1))
    return [repeat for repeat in census.repeats if repeat.bytes >= least]


def of_dataset(facts: Facts) -> list[Repeat]:
    """The repeats that can be of the dataset: of each process no more than its size, where that is known.

    Arrays are counted first, and of these what most groups hold: workers have the dataset, and no model.
    """
    found = repeats(facts.census) if facts.census is not None else []
    size = facts.dataset_bytes
    if not size:
        return found
    left: dict[int, int] = {}
    kept = []
    for repeat in sorted(found, key=lambda repeat: (repeat.kinds == (HEAP,), -len(repeat.holders))):
        pids = holders(repeat)
        taken = min([repeat.bytes, *(left.get(pid, size) for pid in pids)])
        left |= {pid: left.get(pid, size) - taken for pid in pids}
        kept.append(replace(repeat, bytes=taken, duplicate_bytes=(len(repeat.holders) - 1) * taken))
    return [repeat for repeat in kept if repeat.bytes]


def holders(repeat: Repeat) -> set[int]:
    """The processes of all its groups."""
    return {pid for group in repeat.holders for pid in group}


def _shares(repeat: Repeat, members: dict[int, Member]) -> dict[str, int]:
    """How many of the copies beyond the first each name accounts for."""
    of = [[members[pid] for pid in group if pid in members] for group in repeat.holders]
    of = [group for group in of if group]
    if not of:
        return {}
    ranks = {group[0].rank for group in of}
    found = {RANKS: len(ranks) - 1}
    for group in _extra(of):
        name = WRITTEN if any(member.start_method == "fork" for member in group) else PICKLED
        found[name] = found.get(name, 0) + 1
    if found[RANKS] and _parted_by_fork(of):
        found[WRITTEN] = found.get(WRITTEN, 0) + found.pop(RANKS)
    return {name: number for name, number in found.items() if number}


def _extra(of: list[list[Member]]) -> Iterator[list[Member]]:
    """The groups beyond the first of each rank: that with the rank itself counts as the first."""
    first: set[int | None] = set()
    for group in sorted(of, key=lambda group: not any(m.role == "rank" for m in group)):
        if group[0].rank not in first:
            first.add(group[0].rank)
        else:
            yield group


def _parted_by_fork(of: list[list[Member]]) -> bool:
    """Whether the holders descend from one process by forks, and one of the groups holds what that one does."""
    families = {member.family for group in of for member in group}
    launcher = any(member.role in ("launcher", "agent") for group in of for member in group)
    return len(families) == 1 and launcher


def _evidence(name: str, repeats: list[Repeat], members: dict[int, Member]) -> str:
    largest = max(repeats, key=lambda repeat: repeat.duplicate_bytes)
    groups = [[members[pid] for pid in group if pid in members] for group in largest.holders]
    who_holds = [member for group in groups for member in group]
    kinds = " and ".join(largest.kinds)
    same = f"the same {mib(largest.bytes)} MiB ({kinds}) {many(len(groups), 'time')}"
    if name == RANKS:
        sharing = " with the workers they forked" if any(len(group) > 1 for group in groups) else ""
        return f"{people.ranks(m.rank for m in who_holds)}{sharing} hold {same}"
    workers = [member for member in who_holds if member.role == "worker"]
    made = workers or [member for member in who_holds if member.role == "rank"]
    how = "/".join(sorted({member.start_method or "unknown" for member in made}))
    who = people.workers(workers) if workers else people.ranks(member.rank for member in made)
    return f"{who}, started by {how}, and what they were made from hold {same}"


def nested(facts: Facts) -> Iterator[Cause]:
    """Workers that have workers."""
    members = people.by_pid(facts)
    inner = [
        m for m in people.living(facts, "worker") if m.ppid in members and members[m.ppid].role == "worker"
    ]
    if inner:
        outer = {m.ppid for m in inner}
        yield Cause(
            NESTED,
            f"{many(len(outer), 'worker')} of {people.ranks(m.rank for m in inner)} started "
            f"{many(len(inner), 'worker')} of their own: {len(people.living(facts, 'worker'))} in all",
            None, "give one of the two loaders num_workers=0: their numbers multiply", HOLDS,
            tuple(sorted(m.pid for m in inner)), people.since(facts, (m.pid for m in inner)),
        )  # fmt: skip

"""Facts made by hand, and the causes that they show: the right ones, and no others."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.measure.census.result import Census, Held, Repeat
from shardlab.records import Memory
from shardlab.watching import causes, freed
from shardlab.watching.causes import retention
from shardlab.watching.facts import HOLDS, LIKELY, Facts, Limit, Member, Seen
from shardlab.watching.verdict import sentences

MIB = 1 << 20


def member(pid: int, role: str, rank: int | None, method: str, ppid: int = 1, family: int | None = None) -> Member:
    """A process, of a family of its own unless said."""
    return Member(pid, pid, ppid, role, rank, None, method, family or pid, "train.py")


AGENT = member(1, "agent", None, "program")
RANKS = [member(10 + rank, "rank", rank, "program") for rank in range(4)]


def workers(method: str, per_rank: int, ranks: int = 2) -> list[Member]:
    """Of each rank."""
    return [
        member(100 + 10 * r + w, "worker", r, method, RANKS[r].pid, RANKS[r].pid if method == "fork" else None)
        for r in range(ranks)
        for w in range(per_rank)
    ]


def facts(
    members: list[Member],
    *repeats: Repeat,
    objects: dict[int, int] | None = None,
    exclusive: dict[int, dict[str, int]] | None = None,
    census: bool = True,
    **more: object,
) -> Facts:
    """Of these processes; ``objects`` and ``exclusive`` are MiB that each holds for itself."""
    alone = {pid: {k: v * MIB for k, v in kinds.items()} for pid, kinds in (exclusive or {}).items()}
    held = {m.pid: Held({}, alone.get(m.pid, {}), {}, (objects or {}).get(m.pid, 0) * MIB) for m in members}
    taken = Census(
        5.0, len(members), sum(r.duplicate_bytes for r in repeats), 0, {}, 0, tuple(repeats), held, {}, 1.0, 0, True,
        0.1, 0.1,
    )  # fmt: skip
    seen = tuple(Seen(m, 1.0, None, Memory(), Memory(), None) for m in members)
    return replace(Facts(9.0, seen, (), taken if census else None), **more)  # type: ignore[arg-type]


def repeat(mib: int, *groups: tuple[int, ...], kinds: tuple[str, ...] = ("array",)) -> Repeat:
    return Repeat(groups, mib * MIB, (len(groups) - 1) * mib * MIB, kinds)


def named(of: Facts) -> dict[str, tuple[int | None, str]]:
    """Cause to MiB and certainty."""
    return {c.name: (None if c.bytes is None else c.bytes // MIB, c.certainty) for c in causes.found(of)}


def test_ranks_that_hold_the_same_are_told_with_their_bytes_and_copies():
    of = facts([AGENT, *RANKS], repeat(128, (10,), (11,), (12,), (13,)), dataset_bytes=128 * MIB)
    assert named(of) == {"ranks-hold-copies": (384, HOLDS)}
    found = causes.found(of)
    assert causes.copies(of, found) == (4.0, HOLDS)
    assert found[0].evidence == "ranks 0-3 hold the same 128.0 MiB (array) 4 times"
    assert next(sentences(of, found, ())) == "This job holds 4.00 copies of the 128.0 MiB."


def test_of_equal_memory_a_process_holds_one_dataset_and_the_rest_is_something_else():
    each = (10,), (11,), (12,), (13,)
    heap = facts([AGENT, *RANKS], repeat(68, *each, kinds=("array", "heap")), dataset_bytes=64 * MIB)
    assert named(heap) == {"ranks-hold-copies": (192, HOLDS)}
    assert causes.copies(heap, causes.found(heap)) == (4.0, HOLDS)
    model = facts([AGENT, *RANKS], repeat(164, *each), dataset_bytes=64 * MIB)
    assert named(model) == {"ranks-hold-copies": (192, HOLDS), "other-equal-memory": (300, HOLDS)}
    assert causes.copies(model, causes.found(model)) == (4.0, HOLDS)
    assert named(replace(model, dataset_bytes=None)) == {"ranks-hold-copies": (492, HOLDS)}


def test_what_workers_hold_too_is_the_dataset_rather_than_what_ranks_alone_hold():
    members = [AGENT, *RANKS[:2], *workers("spawn", 2)]
    dataset = repeat(100, (10,), (11,), (100,), (101,), (110,), (111,))
    of = facts(members, repeat(900, (10,), (11,)), dataset, dataset_bytes=100 * MIB)
    assert named(of) == {
        "ranks-hold-copies": (100, HOLDS), "workers-hold-pickled-copies": (400, HOLDS),
        "other-equal-memory": (900, HOLDS),
    }  # fmt: skip
    assert causes.copies(of, causes.found(of)) == (6.0, HOLDS)


def test_ranks_with_their_forked_workers_are_a_copy_each():
    members = [AGENT, *RANKS[:2], *workers("fork", 2)]
    of = facts(members, repeat(200, (10, 100, 101), (11, 110, 111)), dataset_bytes=200 * MIB)
    assert named(of) == {"ranks-hold-copies": (200, HOLDS)}
    assert causes.copies(of, causes.found(of)) == (2.0, HOLDS)


def test_of_copies_in_ranks_and_spawned_workers_each_is_counted_once():
    members = [AGENT, *RANKS[:2], *workers("spawn", 2)]
    of = facts(members, repeat(100, (10,), (11,), (100,), (101,), (110,), (111,)), dataset_bytes=100 * MIB)
    assert named(of) == {"ranks-hold-copies": (100, HOLDS), "workers-hold-pickled-copies": (400, HOLDS)}
    assert causes.copies(of, causes.found(of)) == (6.0, HOLDS)


def test_workers_that_repeat_each_other_and_no_rank_hold_the_first_copy_too():
    members = [AGENT, *RANKS[:2], *workers("forkserver", 2)]
    of = facts(members, repeat(100, (100,), (101,)), repeat(90, (110,), (111,)), dataset_bytes=100 * MIB)
    sizes = sorted((c.certainty, c.name, (c.bytes or 0) // MIB) for c in causes.found(of))
    assert sizes == [(HOLDS, "workers-hold-pickled-copies", 190), (LIKELY, "workers-hold-pickled-copies", 190)]
    forked = facts([AGENT, *RANKS[:2], *workers("fork", 2)], repeat(100, (100,), (101,)))
    assert named(forked) == {"workers-copied-by-reference-counting": (100, HOLDS)}


def test_objects_that_forked_workers_came_to_own_are_likely_copies():
    members = [AGENT, RANKS[0], *workers("fork", 4, ranks=1)]
    of = facts(members, objects={100 + n: 85 for n in range(4)} | {10: 150}, dataset_bytes=100 * MIB)
    assert named(of) == {"workers-copied-by-reference-counting": (340, LIKELY)}
    assert causes.copies(of, causes.found(of)) == (4.4, LIKELY)


def test_objects_of_ranks_are_likely_copies_beyond_what_the_agent_holds():
    of = facts([AGENT, *RANKS], objects={1: 320} | {10 + n: 520 + n for n in range(4)})
    assert named(of) == {"ranks-hold-copies": (600, LIKELY)}


def test_what_content_showed_to_be_copied_is_not_inferred_again():
    members = [AGENT, RANKS[0], *workers("fork", 2, ranks=1)]
    of = facts(members, repeat(85, (10,), (100,), (101,)), objects={100: 85, 101: 88})
    assert named(of) == {"workers-copied-by-reference-counting": (170, HOLDS)}


def test_ranks_that_hold_about_a_dataset_beyond_the_agent_likely_hold_it():
    objects = {1: 90} | {10 + n: 200 for n in range(4)}
    assert named(facts([AGENT, *RANKS], objects=objects)) == {}  # as much as imports may be
    assert named(facts([AGENT, *RANKS], objects=objects, dataset_bytes=400 * MIB)) == {}
    of = facts([AGENT, *RANKS], objects=objects, dataset_bytes=100 * MIB)
    assert named(of) == {"ranks-hold-copies": (300, LIKELY)}


def test_a_rank_holds_no_more_than_one_dataset():
    of = facts([AGENT, *RANKS], objects={10 + n: 900 for n in range(4)}, dataset_bytes=100 * MIB)
    assert named(of) == {"ranks-hold-copies": (300, LIKELY)}


def test_different_arrays_of_equal_size_and_background_are_no_cause():
    arrays = {10 + n: {"array": 200} for n in range(4)}
    of = facts([AGENT, *RANKS], repeat(4, (10,), (11,), (12,), (13,)), exclusive=arrays, dataset_bytes=200 * MIB)
    assert named(of) == {}
    assert causes.copies(of, ()) == (1.0, HOLDS)


def test_a_file_and_shared_memory_are_no_copies():
    of = facts([AGENT, *RANKS[:2]])
    assert of.census is not None
    of = replace(of, census=replace(of.census, bytes_by_holders={1: 50 * MIB, 2: 256 * MIB}))
    mapped = tuple(replace(one, by_kind={"file": 128 * MIB}) for one in of.members[1:])
    of = replace(of, members=(of.members[0], *mapped))
    assert named(of) == {"page-cache": (256, HOLDS), "rss-counts-shared-memory": (256, HOLDS)}
    assert of.census is not None
    mapped_by = [rank.pid for rank in RANKS[:2]]
    files = dict.fromkeys(mapped_by, Held({"file": 256 * MIB}, {}, {}))
    assert named(replace(of, census=replace(of.census, by_process=files))) == {"page-cache": (256, HOLDS)}


def test_rss_counts_again_what_pss_does_not_though_content_was_not_read():
    of = facts([AGENT, *RANKS[:2]], census=False)
    own = [(50, 30), (300, 170), (300, 170)]
    last = [Memory(rss_bytes=rss * MIB, pss_bytes=pss * MIB) for rss, pss in own]
    seen = tuple(replace(one, last=memory) for one, memory in zip(of.members, last, strict=True))
    assert named(replace(of, members=seen)) == {"rss-counts-shared-memory": (280, HOLDS)}
    gone = tuple(replace(one, left_s=3.0) for one in seen)
    assert named(replace(of, members=gone)) == {}


def test_batches_on_their_way_workers_of_workers_and_full_limits_are_named():
    outer = workers("spawn", 1, ranks=1)
    inner = member(200, "worker", 0, "spawn", outer[0].pid)
    of = facts([AGENT, RANKS[0], *outer, inner])
    limits = (Limit("memory limit", "cgroup job", 90, 100), Limit("shared memory", "/dev/shm", 10, 100))
    of = replace(of, batch_bytes=160 * MIB, limits=limits, out_of_memory_kills=1)
    assert named(of) == {
        "in-flight-batches": (160, HOLDS), "near-limit": (0, HOLDS), "nested-loaders": (None, HOLDS),
        "out-of-memory-kill": (None, HOLDS),
    }  # fmt: skip


def test_a_limit_that_was_reached_between_two_looks_is_likely_what_ended_a_process():
    group, wider = Limit("memory limit", "cgroup job", 120, 200), Limit("memory limit", "cgroup all", 120, 900)
    machine = Limit("memory", "the machine", 700, 1000)
    of = replace(facts([AGENT, RANKS[0]]), limits=(wider, group, machine))
    assert named(of) == {}
    killed = replace(of, out_of_memory_kills=1)
    assert named(killed) == {"near-limit": (0, LIKELY), "out-of-memory-kill": (None, HOLDS)}
    (near,) = (cause for cause in causes.found(killed) if cause.name == "near-limit")
    assert "of cgroup job" in near.evidence and "60% full when last read" in near.evidence
    by_machine = replace(killed, limits=(group, replace(machine, used=980)))
    (near,) = (cause for cause in causes.found(by_machine) if cause.name == "near-limit")
    assert (near.certainty, "the machine" in near.evidence) == (HOLDS, True)


def test_without_a_census_copies_are_likely_and_never_none_for_unknown():
    of = facts([AGENT, *RANKS[:2]], census=False, dataset_bytes=300 * MIB)
    assert causes.copies(of, causes.found(of)) is None
    own = [Memory(uss_bytes=size * MIB) for size in (200, 700, 705)]
    of = replace(of, members=tuple(replace(one, last=last) for one, last in zip(of.members, own, strict=True)))
    assert named(of) == {"ranks-hold-copies": (300, LIKELY)}


def test_forked_workers_that_hardly_grew_hold_no_copies_though_content_was_not_read():
    members = [AGENT, RANKS[0], *workers("fork", 2, ranks=1)]
    of = facts(members, census=False)
    first, last, more = (Memory(uss_bytes=size * MIB) for size in (60, 62, 150))
    still = tuple(replace(one, first=first, last=last) for one in of.members)
    assert named(replace(of, members=still)) == {}
    grown = tuple(replace(one, first=first, last=more) for one in of.members)
    assert named(replace(of, members=grown)) == {"workers-copied-by-reference-counting": (180, LIKELY)}


def test_objects_beside_arrays_that_are_seen_to_be_copies_are_inferred_still():
    own = {rank.pid: {"array": 500} for rank in RANKS}
    of = facts(
        [AGENT, *RANKS], repeat(100, (10,), (11,), (12,), (13,)), objects=dict.fromkeys(own, 400), exclusive=own
    )
    sizes = sorted((c.certainty, (c.bytes or 0) // MIB) for c in causes.found(of) if c.name == "ranks-hold-copies")
    assert sizes == [(HOLDS, 300), (LIKELY, 3 * (400 - 80 - 220))]
    one = replace(of, dataset_bytes=100 * MIB)
    assert causes.copies(one, causes.found(one)) == (4.0, HOLDS)


def test_where_some_could_not_be_read_copies_are_likely():
    of = facts([AGENT, *RANKS], repeat(128, (10,), (11,)), dataset_bytes=128 * MIB)
    assert of.census is not None
    of = replace(of, census=replace(of.census, unreadable={12: "not ours"}))
    assert causes.copies(of, causes.found(of)) == (2.0, LIKELY)
    unknown = facts([AGENT], repeat(128, (90,), (91,)))
    assert named(unknown) == {}


GROUPS = st.lists(st.sampled_from([10, 11, 12, 13, 100, 101, 110, 111]), min_size=2, max_size=8, unique=True)


@given(st.lists(st.tuples(GROUPS, st.integers(1, 300)), max_size=6), st.sampled_from(["fork", "spawn"]))
def test_causes_that_hold_never_exceed_what_is_duplicate(of: list[tuple[list[int], int]], method: str):
    repeats = [repeat(size, *((pid,) for pid in pids)) for pids, size in of]
    members = [AGENT, *RANKS, *workers(method, 2)]
    made = facts(members, *repeats)
    assert made.census is not None
    proven = sum(c.bytes or 0 for c in causes.found(made) if c.name in causes.COPIES and c.certainty == HOLDS)
    due = sum(r.duplicate_bytes for r in repeats if r.bytes >= 8 * MIB)
    assert proven == due <= made.census.duplicate_bytes


@given(st.lists(st.tuples(GROUPS, st.integers(1, 300)), max_size=6), st.integers(1, 300))
def test_proven_copies_are_at_most_one_dataset_for_each_process_that_holds_some(
    of: list[tuple[list[int], int]], size: int
):
    repeats = [repeat(mib, *((pid,) for pid in pids)) for pids, mib in of]
    known = facts([AGENT, *RANKS, *workers("spawn", 2)], *repeats, dataset_bytes=size * MIB)
    found = [cause for cause in causes.found(known) if cause.certainty == HOLDS]
    proven = sum(c.bytes or 0 for c in found if c.name in causes.COPIES)
    holders = {pid for pids, _ in of for pid in pids}
    assert proven <= max(len(holders) - 1, 0) * size * MIB
    besides = sum(c.bytes or 0 for c in found if c.name == "other-equal-memory")
    due = sum(r.duplicate_bytes for r in repeats if r.bytes >= 8 * MIB)
    assert due - 32 * MIB <= proven + besides <= due


# What an allocator keeps

FREES = """
import ctypes, re, sys, threading
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
how, done = sys.argv[1], threading.Event()
if how == "top":
    libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD

def run():
    blocks = [libc.malloc(16000) for _ in range(2048)]
    for block in blocks:
        ctypes.memset(block, 1, 16000)
    kept = None if how == "top" else libc.malloc(16000)
    for block in blocks[:: 3 if how == "third" else 1] if how != "none" else ():
        libc.free(block)
    done.set()
    again.wait()

again = threading.Event()
if how == "thread":
    threading.Thread(target=run, daemon=True).start()
else:
    again.set()
    run()
done.wait()

def resident():
    return int(re.search(r"Rss: +([0-9]+)", open("/proc/self/smaps_rollup").read())[1]) * 1024

before = resident()
print("freed", flush=True)
input()
libc.malloc_trim(0)
print(before - resident(), flush=True)
again.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another process's pages are read on Linux alone")
@pytest.mark.parametrize(("how", "mib"), [("all", 31), ("third", 8), ("top", 31), ("thread", 31), ("none", 0)])
def test_what_is_freed_and_kept_is_what_malloc_trim_gives_back(how: str, mib: int):
    with subprocess.Popen(
        [sys.executable, "-c", FREES, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdin is not None and job.stdout is not None
        job.stdout.readline()
        found = freed.freed(job.pid)
        job.stdin.write("\n")
        job.stdin.flush()
        given_back = int(job.stdout.readline())
    assert found is not None
    assert found.resident_bytes == pytest.approx(given_back, abs=0.3 * MIB)
    assert found.resident_bytes == pytest.approx(mib * MIB, abs=1.5 * MIB)


def test_what_allocators_keep_is_named_and_is_no_copy():
    of = facts([AGENT, *RANKS])
    kept = {rank.pid: 128 * MIB for rank in RANKS}
    (cause,) = retention.causes(replace(of, retained_bytes={1: 1 * MIB} | kept))
    assert (cause.name, cause.bytes, cause.certainty) == ("allocator-retention", 512 * MIB, HOLDS)
    assert cause.pids == (10, 11, 12, 13)
    assert "ranks 0-3 freed 512.0 MiB" in cause.evidence
    assert cause.name not in causes.COPIES
    assert not list(retention.causes(replace(of, retained_bytes=dict.fromkeys(kept, 4 * MIB))))


def test_of_one_rank_alone_nothing_is_said_of_copies_in_ranks():
    of = facts([AGENT, *RANKS[:2]], census=False, dataset_bytes=100 * MIB)
    own = [Memory(uss_bytes=200 * MIB), Memory(uss_bytes=700 * MIB), Memory()]
    of = replace(of, members=tuple(replace(one, last=last) for one, last in zip(of.members, own, strict=True)))
    assert "ranks-hold-copies" not in named(of)
    both = replace(of, members=(*of.members[:2], replace(of.members[2], last=own[1])))
    assert "ranks-hold-copies" in named(both)

"""When memory has settled, when it has grown, and of whom it is, on a /proc and a clock made by hand."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.measure import timeline
from shardlab.watching import history
from shardlab.watching.facts import Member
from shardlab.watching.history import History, by_kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")

MIB, KIB = 1 << 20, 1 << 10
PAGE = os.sysconf("SC_PAGESIZE")


def member(pid: int, role: str = "rank", started: int = 1) -> Member:
    return Member(pid, started, 1, role, pid if role == "rank" else 0, None, "program", pid, "train.py")


class World:
    """A kernel in which processes hold what is said, and time goes on when it is told to."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 0.0
        self.members: list[Member] = []

    def holds(self, pid: int, mib: float, pss: float | None = None) -> None:
        """From now on the process has so many MiB of RSS, and of PSS."""
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "statm").write_text(f"0 {round(mib * MIB) // PAGE} 0 0 0 0 0")
        kib = round((mib if pss is None else pss) * KIB)
        text = f"Rss: {round(mib * KIB)} kB\nPss: {kib} kB\nPrivate_Clean: 0 kB\nPrivate_Dirty: {kib} kB\n"
        (folder / "smaps_rollup").write_text(text)

    def watch(self, of: History, seconds: float) -> None:
        """Ten samples a second."""
        for _ in range(round(seconds * 10)):
            of.follow(self.members)
            of.tick()
            of.settled()
            self.now += 0.1


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    clock = SimpleNamespace(monotonic=lambda: made.now, process_time=lambda: made.now)
    for module in (timeline, history):
        monkeypatch.setattr(module, "time", clock)
    return made


@pytest.fixture
def watched(world: World) -> History:
    """Of two ranks with 500 MiB each."""
    world.members = [member(10), member(11)]
    for one in world.members:
        world.holds(one.pid, 500)
    return History("run", "node", None, world.root)


def test_memory_has_settled_after_three_seconds_in_which_nothing_moved(world: World, watched: History):
    world.watch(watched, 2.5)
    assert not watched.settled()
    world.watch(watched, 1.5)
    assert watched.settled()


def test_memory_that_moves_by_more_than_a_fiftieth_has_not_settled(world: World, watched: History):
    for step in range(40):  # 3 s take 60 MiB more, of 1000
        world.holds(10, 500 + 2 * step)
        world.watch(watched, 0.1)
    assert not watched.settled()
    for step in range(40):  # 3 s take 15 MiB more
        world.holds(10, 580 + 0.5 * step)
        world.watch(watched, 0.1)
    assert watched.settled()


def test_who_joins_starts_the_three_seconds_anew(world: World, watched: History):
    world.watch(watched, 4)
    world.members.append(member(12))
    world.holds(12, 1)
    world.watch(watched, 2)
    assert not watched.settled()
    world.watch(watched, 2)
    assert watched.settled()


def test_workers_of_each_epoch_are_waited_for_but_not_for_ever(world: World, watched: History):
    ranks = list(world.members)
    for epoch in range(8):
        world.members = [*ranks, member(100 + epoch, "worker")]
        world.holds(100 + epoch, 300)  # what workers hold comes and goes with them
        world.watch(watched, 1)
        assert not watched.settled()
    for epoch in range(8, 16):
        world.members = [*ranks, member(100 + epoch, "worker")]
        world.holds(100 + epoch, 300)
        world.watch(watched, 1)
    assert watched.settled()


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [(1000, 1240, False), (1000, 1260, True), (100, 160, False), (100, 170, True), (1000, 900, False)],
)
def test_memory_has_grown_by_a_quarter_and_by_64_mib(
    before: float, after: float, grown: bool, world: World, watched: History
):
    for pid in (10, 11):
        world.holds(pid, 2000, pss=before / 2)
    watched.follow(world.members)
    watched.read_all()
    held = watched.held()
    assert held == before * MIB
    world.holds(10, 2000, pss=after - before / 2)
    watched.read_all()
    assert watched.grown(held) == grown


def test_what_is_held_is_of_the_living_and_each_as_last_read(world: World, watched: History):
    watched.follow(world.members)
    watched.read_all()
    world.holds(11, 700)
    watched.read_all()
    assert watched.held() == 1200 * MIB
    watched.follow(world.members[:1])
    assert watched.held() == 500 * MIB


@given(st.permutations(range(6)))
def test_the_order_in_which_processes_are_listed_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, order: Sequence[int]
):
    world = World(tmp_path_factory.getbasetemp())
    for pid in range(6):
        world.holds(10 + pid, 100 * pid + 100)
    of = History("run", "node", None, world.root)
    of.follow([member(10 + pid) for pid in order])
    of.tick()
    of.read_all()
    assert of.held() == 2100 * MIB
    rss = {one.member.pid: one.rss_bytes for one in of.seen()}
    assert rss == {10 + pid: (100 * pid + 100) * MIB for pid in range(6)}


def test_who_left_is_remembered_for_a_minute_as_last_seen(world: World, watched: History):
    world.watch(watched, 1)
    gone = world.members.pop()
    world.watch(watched, 30)
    (one,) = [seen for seen in watched.seen() if seen.member == gone]
    assert one.left_s == pytest.approx(1, abs=0.11)
    assert one.rss_bytes == 500 * MIB
    world.watch(watched, 35)
    assert [seen.member for seen in watched.seen()] == world.members


def test_a_pid_that_is_used_again_is_another_process(world: World, watched: History):
    world.watch(watched, 1)
    world.members[1] = member(11, started=2)
    world.holds(11, 50)
    world.watch(watched, 1)
    seen = {(one.member.pid, one.member.start_ticks): (one.rss_bytes, one.left_s is None) for one in watched.seen()}
    assert seen == {(10, 1): (500 * MIB, True), (11, 1): (500 * MIB, False), (11, 2): (50 * MIB, True)}


def test_of_a_process_that_may_not_be_read_nothing_is_known_rather_than_zero(
    world: World, watched: History, monkeypatch: pytest.MonkeyPatch
):
    real = os.open

    def refusing(path: str, *how: int) -> int:
        if str(path).startswith(f"{world.root}/11/smaps"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *how)

    monkeypatch.setattr(os, "open", refusing)
    world.watch(watched, 4)
    watched.read_all()
    (other,) = [one for one in watched.seen() if one.member.pid == 11]
    assert (other.first, other.last, other.by_kind) == (None, None, {})
    assert other.rss_bytes == 500 * MIB  # which anybody may know
    assert watched.held() == 500 * MIB


SMAPS = """\
7f0000000000-7f0000001000 r-xp 00000000 fe:00 9                          /lib.so
Pss:                   4 kB
7f0000001000-7f0000002000 rw-p 00001000 fe:00 9                          /lib.so
Pss:                   4 kB
7f0000002000-{end:x} rw-p 00000000 00:00 0
Pss:                {pss} kB
7f1000001000-7f1000009000 rw-p 00000000 00:00 0
Pss:                  32 kB
7f2000000000-7f2000008000 rw-s 00000000 00:01 77                         /memfd:a (deleted)
Pss:                   8 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Pss:                  16 kB
"""


@pytest.mark.skipif(PAGE != 4096, reason="the file is made for pages of 4 KiB")
@pytest.mark.parametrize(
    ("pages", "pss", "array", "program"),
    [
        (4, 16, 32, 24 + 16),  # all that follows the library is its own
        (16, 56, 32 + 48, 24 + 8),  # 12 pages of it are an array's, of 14 that are there
        (16, 20, 32 + 20, 24),  # no more is there than the array may have
    ],
)
def test_variables_of_a_library_that_begin_as_zeros_are_no_array(
    pages: int, pss: int, array: int, program: int, tmp_path: Path
):
    head = struct.pack("<6s26xQ14xHH4x", b"\x7fELF\x02\x01", 64, 56, 1)
    # of what is loaded at 0x1000 a page is in the file and five are in memory
    part = struct.pack("<I4xQQ8xQQ8x", 1, 0x1000, 0x1000, 0x1000, 0x5000)
    (tmp_path / "7/root").mkdir(parents=True)
    (tmp_path / "7/root/lib.so").write_bytes(head.ljust(64, b"\0") + part)
    (tmp_path / "7/smaps").write_text(SMAPS.format(end=0x7F0000002000 + pages * PAGE, pss=pss))
    due = {"array": array * KIB, "program": program * KIB, "shared memory": 8 * KIB}
    assert by_kind(7, set(), tmp_path) == due
    assert by_kind(8, set(), tmp_path) is None

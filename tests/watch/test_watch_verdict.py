"""What is said: whole, once, within the width of a terminal, and whatever order processes are listed in."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from command import SOURCE
from shardlab.measure.census.result import Census, Held, Repeat
from shardlab.records import Memory
from shardlab.watching import causes
from shardlab.watching.facts import HOLDS, Cause, Facts, Limit, Member, Seen
from shardlab.watching.permits import Refusal
from shardlab.watching.screen import MOST_LINES, WIDTH, Screen, are_one_place, table, wrapped
from shardlab.watching.verdict import as_object, killed, sentences

MIB = 1 << 20
NOTHING = Facts(9.0, (), (), None)
LONG = Refusal(
    "the census", "kernel.yama.ptrace_scope is 1, and this job was not started from here",
    "start it by `python -m shardlab.watch -- COMMAND`, or `sudo sysctl kernel.yama.ptrace_scope=0`, or sudo", (7, 8),
)  # fmt: skip


def seen(pid: int, role: str = "other", rank: int | None = None, method: str = "program", ppid: int = 1) -> Seen:
    family = ppid if method == "fork" else pid
    member = Member(pid, pid, ppid, role, rank, None, method, family, "train.py with a long name to cut")
    return Seen(member, 1.0, None, Memory(pss_bytes=MIB), Memory(pss_bytes=3 * MIB), 5 * MIB)


# The order of processes


@st.composite
def jobs(draw: st.DrawFn) -> Facts:
    """An agent, ranks and their workers, with copies among any of them."""
    ranks = [seen(10 + r, "rank", r) for r in range(draw(st.integers(1, 3)))]
    method = draw(st.sampled_from(["fork", "spawn", "forkserver"]))
    workers = [
        seen(100 + 10 * r + w, "worker", r, method, ranks[r].member.pid)
        for r in range(len(ranks))
        for w in range(draw(st.integers(0, 2)))
    ]
    members = [seen(1, "agent"), *ranks, *workers]
    pids = [one.member.pid for one in members]
    sizes = st.integers(0, 4).map(lambda n: n * 70 * MIB)
    members = [replace(one, last=Memory(uss_bytes=draw(sizes), pss_bytes=draw(sizes))) for one in members]
    repeats = []
    for _ in range(draw(st.integers(0, 2))):
        holders = draw(st.lists(st.sampled_from(pids), min_size=2, unique=True).map(sorted))
        size = draw(st.integers(1, 3)) * 50 * MIB
        repeats.append(Repeat(tuple((pid,) for pid in holders), size, (len(holders) - 1) * size, ("array",)))
    held = {
        pid: Held({}, {"array": draw(sizes), "heap": draw(sizes)}, {}, object_bytes=draw(sizes)) for pid in pids
    }
    census = Census(
        5.0, len(pids), sum(r.duplicate_bytes for r in repeats), 0, {1: 7 * MIB}, 0, tuple(repeats), held, {}, 1.0, 0,
        True, 0.1, 0.1,
    )  # fmt: skip
    size = draw(st.sampled_from([None, 100 * MIB]))
    return Facts(9.0, tuple(members), (), draw(st.sampled_from([census, None])), size)


@given(jobs(), st.randoms(use_true_random=False))
def test_the_order_in_which_processes_are_listed_changes_no_word(facts: Facts, chance: random.Random):
    members = list(facts.members)
    chance.shuffle(members)
    census = facts.census
    if census is not None:
        held = list(census.by_process.items())
        chance.shuffle(held)
        census = replace(census, by_process=dict(held))
    other = replace(facts, members=tuple(members), census=census)
    found, again = causes.found(facts), causes.found(other)
    assert causes.copies(facts, found) == causes.copies(other, again)
    assert list(sentences(facts, found, ())) == list(sentences(other, again, ()))


# What is said


def test_nothing_known_is_null_with_its_reason():
    told = as_object(NOTHING, (), (LONG,), {}, "why not")
    for name in ("copies", "duplicate_bytes", "bytes_by_holders", "out_of_memory_kills"):
        assert told[name] is None
    assert told["reasons"]["duplicate_bytes"] == "why not"
    assert told["reasons"]["copies"] == "--dataset-bytes was not given"
    assert told["reasons"]["the census"] == LONG.sentence
    assert json.loads(json.dumps(told)) == told


def test_one_thing_lost_for_two_reasons_is_told_with_both():
    refused = [Refusal("PSS", "another user's", "sudo", (7,)), Refusal("PSS", "setuid", "sudo", (8,))]
    reason = as_object(NOTHING, (), refused, {}, "")["reasons"]["PSS"]
    assert "of 7: another user's" in reason and "of 8: setuid" in reason


def test_kills_are_told_as_far_as_they_are_known():
    assert "ended a process of this job for lack of memory, 4 s" in killed(
        replace(NOTHING, out_of_memory_kills=1, killed_s=4.0)
    )
    assert "its cgroup counts no kill" in killed(replace(NOTHING, out_of_memory_kills=0))
    of_machine = replace(NOTHING, machine_kills=2, killed_s=4.0)
    assert "of this machine for lack of memory, likely it" in killed(of_machine)
    assert "no process of this machine" in killed(replace(NOTHING, machine_kills=0))
    assert "does not tell" in killed(NOTHING)
    said = list(sentences(of_machine, (), ()))
    assert "The kernel ended 2 processes of this machine for lack of memory, 4 s" in said[-1]
    assert "no cgroup tells whether of this job" in said[-1]
    assert not any("machine" in line for line in sentences(replace(of_machine, machine_kills=0), (), ()))


@given(st.lists(st.text("ab -`", min_size=1, max_size=200), max_size=3), st.integers(40, WIDTH))
def test_no_line_is_longer_than_the_width_and_no_word_is_lost(lines: list[str], width: int):
    found = list(wrapped(lines, width))
    assert " ".join(found).split() == " ".join(lines).split()
    assert all(len(line) <= width or " " not in line for line in found)


def frame(facts_of: list[Seen], height: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is drawn of these processes on a terminal of so many lines, with as much below them as there may be."""
    shown = Screen(shown=False)
    shown._console = Console(file=io.StringIO(), width=WIDTH, height=height, color_system=None)
    drawn: list[object] = []
    monkeypatch.setattr(shown._live, "update", drawn.append)
    limits = [Limit("memory limit", "cgroup " + "a/" * 100, 9, 10)] * 5
    shown.draw(3.0, facts_of, limits, [Cause("near-limit", "", 1, "", HOLDS)] * 5, [LONG] * 3)
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(drawn[0])
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("height", [24, 50])
def test_of_two_hundred_processes_ranks_are_drawn_and_the_view_fits(height: int, monkeypatch: pytest.MonkeyPatch):
    many = [seen(1000 + n) for n in range(196)] + [seen(10 + r, "rank", r) for r in range(4)]
    lines = frame(many, height, monkeypatch)
    assert len(lines) <= height
    assert max(map(len, lines)) <= WIDTH
    assert sum(line.startswith("rank ") for line in lines) == 4
    (rest,) = [line for line in lines if line.startswith("and 196 more")]
    assert rest.split()[-1] == "588.0"  # PSS, never a sum of RSS
    assert "Without the census of 2 processes" in "\n".join(lines)
    assert lines[-1].strip() == "3 s"


def test_few_processes_are_drawn_each():
    assert table([seen(pid) for pid in range(MOST_LINES)]).row_count == MOST_LINES
    unread = [replace(seen(pid), last=None) for pid in range(MOST_LINES + 1)]
    assert next(iter(table(unread).columns[4].cells)) == "-"


def test_two_ends_of_one_file_are_one_place(tmp_path: Path):
    with (tmp_path / "a").open("w") as one, (tmp_path / "a").open("a") as same, (tmp_path / "b").open("w") as other:
        assert are_one_place(one, same)
        assert not are_one_place(one, other)
    assert not are_one_place(io.StringIO(), io.StringIO())


# The command


@contextmanager
def sleeping() -> Iterator[int]:
    """The pid of a job that does nothing."""
    with subprocess.Popen(["sleep", "60"]) as job:
        try:
            yield job.pid
        finally:
            job.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")
@pytest.mark.parametrize("together", [True, False])
def test_a_verdict_that_was_the_last_thing_said_is_not_said_again(together: bool):
    with sleeping() as pid:
        command = [sys.executable, "-m", "shardlab.watch", "--results", "none", "--pid", str(pid)]
        done = subprocess.run(
            [*command, "--census-at", "0.3", "--for-seconds", "1"], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if together else subprocess.PIPE, env=os.environ | {"PYTHONPATH": SOURCE},
            text=True, timeout=60, check=True,
        )  # fmt: skip
    places = [done.stdout] if together else [done.stdout, done.stderr]
    assert [place.count("Census of 1 process:") for place in places] == [1] * len(places)
    assert "Watching took" in done.stdout
    assert max(len(line) for place in places for line in place.splitlines()) <= WIDTH

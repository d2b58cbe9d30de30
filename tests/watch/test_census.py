"""Memory that was made so that its duplicates are known, and the arithmetic on hand-worked pages."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seccomp
from hypothesis import given
from hypothesis import strategies as st

from shardlab.measure.census import counting, pages
from shardlab.measure.census.counting import Rows
from shardlab.measure.census.reading import Reader
from shardlab.measure.census.result import KINDS, Census, Repeat, Subject
from shardlab.measure.census.take import take

TRUTHS = Path(__file__).parent / "truths.py"
MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages can be read on Linux alone")


# On pages written by hand


def rows(*of: tuple[int, int, int]) -> Rows:
    """Rows of (content, frame, process), all of them arrays."""
    content, frame, process = zip(*of, strict=True)
    return Rows(
        np.array(content, np.uint64), np.array(frame, np.uint64), np.array(process, np.uint16),
        np.full(len(of), KINDS.index("array"), np.uint8),
    )  # fmt: skip


def counted(*of: tuple[int, int, int]) -> counting.Counted:
    """In pages, of the processes 10 to 15."""
    return counting.counted(rows(*of), range(10, 16), 1, 1)


def test_frames_that_hold_the_same_are_duplicates_and_their_groups_are_told():
    found = counted((7, 100, 0), (7, 100, 1), (7, 200, 2), (8, 300, 0), (9, 400, 3), (9, 400, 4))
    assert found.duplicate_bytes == 1
    assert found.by_holders == {1: 1, 2: 1, 3: 1}
    assert found.repeats == (Repeat(((10, 11), (12,)), 1, 1, ("array",)),)
    assert found.by_process[10].resident_bytes == {"array": 2}
    assert found.by_process[10].exclusive_bytes == {"array": 1}
    assert found.by_process[12].repeated_bytes == {"array": 1}


def test_content_that_one_process_holds_often_is_counted_as_often():
    ones = [(1, 10 * process + n, process) for process in range(4) for n in range(5)]
    found = counted(*ones)
    assert found.duplicate_bytes == 15
    assert found.by_holders == {4: 5}
    assert counted(*ones[:5]).duplicate_bytes == 0
    assert counted(*ones[:5], (1, 99, 1)).duplicate_bytes == 1


def test_a_page_of_a_file_beside_a_copy_in_memory_is_no_duplicate():
    file = Rows(
        np.array([5, 5, 5], np.uint64), np.array([int(pages.OF_FILE) | 3, 20, 21], np.uint64),
        np.array([0, 1, 2], np.uint16),
        np.array([KINDS.index("file"), KINDS.index("array"), KINDS.index("array")], np.uint8),
    )  # fmt: skip
    assert counting.counted(file.take(np.arange(2)), range(3), 1, 1).duplicate_bytes == 0
    assert counting.counted(file, range(3), 1, 1).repeats == (Repeat(((1,), (2,)), 1, 1, ("array",)),)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), max_size=40))
def test_of_private_pages_all_but_the_most_that_one_process_holds_are_duplicates(of: list[tuple[int, int]]):
    private = [(content, number, process) for number, (content, process) in enumerate(of)]
    found = counted(*private) if private else counting.counted(counting.joined([]), range(10, 16), 1, 1)
    due = 0
    for content in {c for c, _ in of}:
        per_process = [sum(1 for c, p in of if (c, p) == (content, process)) for process in range(6)]
        due += sum(per_process) - max(per_process)
    assert found.duplicate_bytes == due == sum(repeat.duplicate_bytes for repeat in found.repeats)
    assert sum(n * size for n, size in found.by_holders.items()) == len(of)


@given(st.permutations(range(6)))
def test_the_order_of_processes_changes_nothing_but_names(order: list[int]):
    of = [(7, 100, 0), (7, 100, 1), (7, 200, 2), (8, 300, 3), (8, 301, 4), (9, 400, 5)]
    found, other = counted(*of), counted(*((c, f, order[p]) for c, f, p in of))
    assert (found.duplicate_bytes, found.by_holders) == (other.duplicate_bytes, other.by_holders)
    renamed = {tuple(sorted(tuple(sorted(10 + order[p - 10] for p in h)) for h in r.holders)) for r in found.repeats}
    assert renamed == {repeat.holders for repeat in other.repeats}


def test_pages_without_data_are_passed_over():
    size = os.sysconf("SC_PAGESIZE")
    spans = [(7 * size + 1, 9 * size), (0, 2 * size), (size, 4 * size), (5 * size, 6 * size - 1)]
    assert pages.whole_pages(spans) == ((0, 2), (2, 4), (8, 9))
    found = pages.outside(np.arange(10, dtype=np.uint64), ((0, 2), (4, 5), (5, 6), (9, 12)))
    assert np.flatnonzero(found).tolist() == [2, 3, 6, 7, 8]
    assert pages.outside(np.arange(3, dtype=np.uint64), ()).all()


MAPS = """\
55d0c8a00000-55d0c8b00000 r--p 00000000 fe:00 1001                       /usr/bin/python3.11
55d0c8b00000-55d0c8c00000 r-xp 00100000 fe:00 1001                       /usr/bin/python3.11
55d0c9000000-55d0c9100000 rw-p 00000000 00:00 0                          [heap]
7f0004000000-7f0004021000 rw-p 00000000 00:00 0
7f0004021000-7f0008000000 ---p 00000000 00:00 0
7f1000001000-7f1010001000 rw-p 00000000 00:00 0
7f1020000000-7f1020100000 rw-s 00000000 00:01 2051                       /memfd:samples (deleted)
7f1021000000-7f1021100000 rw-s 00000000 00:1a 7                          /dev/shm/torch_77_123_0 (deleted)
7f1022000000-7f1022100000 rw-s 00000000 00:1a 8                          /dev/shm/torch_12_123_0 (deleted)
7f1023000000-7f1023100000 r--p 00001000 fe:00 42                         /data/a b.npy
7f1024000000-7f1024100000 rw-s 00000000 00:05 9                          /dev/nvidia0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
"""


def test_mappings_are_told_apart_by_what_they_hold():
    found = pages.mappings(MAPS)
    code = pages.programs(found)
    assert code == {("fe:00", 1001)}
    kinds = [pages.kind_of(mapping, code, {77}) for mapping in found]
    assert kinds == [
        None, None, "heap", "heap", "array", "array", "shared memory", "in flight", "shared memory", "file", None,
        None,
    ]  # fmt: skip
    assert found[9] == pages.Mapping(0x7F1023000000, 0x7F1023100000, "r--p", 0x1000, "fe:00", 42, "/data/a b.npy")


def test_how_many_share_a_mapping_is_read_off_its_pss():
    smaps = "7f10-7f20 rw-p 00000000 00:00 0\nRss: 1000 kB\nPss: 400 kB\nPss_Dirty: 9 kB\nPrivate_Clean: 0 kB\n"
    assert pages.shared_ratios(smaps + "Private_Dirty: 100 kB\n") == {0x7F10: pytest.approx(1 / 3)}


# On real processes


@contextmanager
def truth(case: str, *flags: str, mb: int, under: Sequence[str] = ()) -> Iterator[list[Subject]]:
    """The processes of a case of ``truths.py`` while they are there; ``under`` is what they are started by."""
    command = [*under, sys.executable, str(TRUTHS), case, "--mb", str(mb), *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield [
            Subject(pid, told["families"][str(pid)], told["ranks"][str(pid)]) for pid in told["pids"]
        ]
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def census(case: str, *flags: str, mb: int, **how: Any) -> Census:
    """Of a case."""
    with truth(case, *flags, mb=mb) as subjects:
        return take(subjects, **how)


CASES = [
    ("private", 3), ("different", 0), ("forked", 0), ("rewritten", 1.5), ("shared", 0), ("mapped", 0),
    ("grouped", 1), ("grouped-by-fork", 1), ("two-share", 2),
]  # fmt: skip
"""Case, and how many times the array's bytes are duplicate. Rewritten: four private copies of one half."""


COPIED = ("private", "forked", "rewritten")


def assert_true(case: str, due: float, flags: tuple[str, ...], mb: int, within: float = 0.01) -> None:
    found, background = census(case, *flags, mb=mb), census(case, *flags, mb=0)
    assert not found.unreadable
    duplicate = found.duplicate_bytes - background.duplicate_bytes
    assert duplicate == pytest.approx(due * mb * MIB, abs=within * mb * MIB)


@pytest.mark.parametrize(("case", "due"), [CASES[0], CASES[3], CASES[7]])
def test_what_was_made_is_found(case: str, due: float):
    assert_true(case, due, (), 32, within=0.1)  # what an interpreter repeats differs by 2 MiB from run to run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "due", "size"),
    [*((*case, "small") for case in CASES), *((*case, "huge") for case in CASES if case[0] in COPIED)],
)
def test_what_was_made_is_found_within_one_percent(case: str, due: float, size: str):
    assert_true(case, due, ("--pages", size), 500)


@pytest.mark.slow
@pytest.mark.parametrize("content", ["ones", "labels", "pairs", "high"])
def test_no_content_collapses(content: str):
    assert_true("private", 3, ("--content", content), 200)


SUBPROCESS = """
import json, sys
from dataclasses import asdict
from shardlab.measure.census.result import Subject
from shardlab.measure.census.take import take
print(json.dumps(asdict(take([Subject(*subject) for subject in json.load(sys.stdin)]))))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setpriv") is None or os.geteuid() != 0, reason="needs root and setpriv")
@pytest.mark.parametrize(("case", "due"), CASES)
def test_without_privileges_the_same_is_found(case: str, due: float):
    found = []
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    for mb in (300, 0):
        with truth(case, mb=mb, under=drop) as subjects:
            told = json.dumps([list(asdict(subject).values()) for subject in subjects])
            done = subprocess.run(
                [*drop, sys.executable, "-c", SUBPROCESS], input=told, capture_output=True, text=True, check=True
            )
        found.append(json.loads(done.stdout))
    assert not found[0]["frames_known"] and not found[0]["unreadable"]
    duplicate = found[0]["duplicate_bytes"] - found[1]["duplicate_bytes"]
    assert duplicate == pytest.approx(due * 300 * MIB, abs=0.01 * 300 * MIB)


def test_sampled_the_truth_lies_within_the_error_that_is_told():
    found = census("private", mb=64, most_pages=20_000)
    assert found.sampled_ratio < 0.3
    assert 0 < found.error_bytes < 24 * MIB
    assert found.duplicate_bytes == pytest.approx(3 * 64 * MIB, abs=1.6 * found.error_bytes)


def test_frames_that_are_shared_are_read_once():
    with truth("shared", mb=32) as subjects:
        found = take(subjects)
    resident = sum(sum(held.resident_bytes.values()) for held in found.by_process.values())
    assert found.read_bytes < resident - 3 * 32 * MIB + MIB
    assert found.bytes_by_holders[4] == pytest.approx(32 * MIB, rel=0.05)


@pytest.mark.parametrize("most_pages", [10**9, 4000])
def test_to_read_what_processes_share_by_fork_does_not_copy_it(most_pages: int):
    with truth("forked", mb=32) as subjects:
        before = sum(private_bytes(subject.pid) for subject in subjects)
        assert take(subjects, most_pages=most_pages).read_bytes > MIB
        assert sum(private_bytes(subject.pid) for subject in subjects) < before + MIB


def private_bytes(pid: int) -> int:
    """What a process alone has, by the kernel's own account."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Private_"))


WITHOUT_THE_CALL = """
import sys
sys.path.insert(0, sys.argv[1])
from seccomp import refuse_process_vm_readv
refuse_process_vm_readv()
from shardlab.watching.permits import refusals
sys.stderr.write(" ".join(refusal.lost for refusal in refusals([])))
"""


@pytest.mark.skipif(platform.machine() not in seccomp.NUMBERS, reason="the number of the call is not known here")
def test_where_process_vm_readv_is_refused_memory_is_read_another_way():
    script = WITHOUT_THE_CALL + SUBPROCESS
    with truth("private", mb=16) as subjects:
        told = json.dumps([list(asdict(subject).values()) for subject in subjects])
        done = subprocess.run(
            [sys.executable, "-c", script, str(TRUTHS.parent)], input=told, capture_output=True, text=True, check=True
        )
        due = take(subjects)
    found = json.loads(done.stdout)
    assert "process_vm_readv" in done.stderr
    assert not found["unreadable"]
    assert found["duplicate_bytes"] == pytest.approx(due.duplicate_bytes, rel=0.02)
    assert found["read_bytes"] == pytest.approx(due.read_bytes, rel=0.02)


def test_pages_that_went_away_are_left_out_and_those_after_them_are_read():
    page = os.sysconf("SC_PAGESIZE")
    with mmap.mmap(-1, 8 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        for number in range(8):
            room[number * page] = number + 1
        held = ctypes.c_char.from_buffer(room)
        first = ctypes.addressof(held) // page
        del held
        with Reader(os.getpid(), page) as reader:
            whole, due, _ = reader.hashes(np.arange(first, first + 8, dtype=np.uint64))
            assert whole.size == len(set(due.tolist())) == 8
            missing = np.array([1, *range(first, first + 4), 2**35, *range(first + 4, first + 8)], np.uint64)
            kept, hashes, objects = reader.hashes(missing)
        assert kept.tolist() == whole.tolist()
        assert hashes.tolist() == due.tolist()
        assert objects.size == 8


def test_a_process_that_is_gone_or_not_ours_is_named_and_the_others_are_counted():
    with truth("private", mb=8) as subjects:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        found = take([*subjects, Subject(gone.pid, gone.pid)])
    assert found.processes == 4
    assert found.unreadable == {gone.pid: "it ended during the census"}
    assert found.duplicate_bytes > 24 * MIB

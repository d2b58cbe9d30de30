"""The timeline on a made-up ``/proc`` and a clock that the test turns."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from shardlab import csvlog
from shardlab.measure import settle, timeline
from shardlab.measure.hold import TRIM_SIGNAL
from shardlab.measure.timeline import Timeline
from shardlab.measure.tree import Proc

PAGE = 4096
MIB = 1 << 20


class Machine:
    """Processes as files; ``now`` is the time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 0.0

    def put(
        self, pid: int, rss: int, pss: int = 0, state: str = "S", switches: int = 0, peak: int | None = None
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "statm").write_text(f"9 {rss // PAGE} 0 0 0 0 0\n")
        (folder / "smaps_rollup").write_text(f"Rss: {rss // 1024} kB\nPss: {pss // 1024} kB\n")
        (folder / "stat").write_text(f"{pid} (x) {state} 1 1 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 {pid} 1 2 3")
        most = "" if peak is None else f"VmHWM:\t{peak // 1024} kB\n"
        (folder / "status").write_text(f"{most}voluntary_ctxt_switches:\t{switches}\n")

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def machine(tmp_path: Path, monkeypatch) -> Machine:
    (tmp_path / "proc").mkdir()
    made = Machine(tmp_path / "proc")
    monkeypatch.setattr(timeline.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(timeline.time, "process_time", lambda: made.now)
    monkeypatch.setattr(timeline.os, "sysconf", lambda name: PAGE)
    return made


def test_a_steady_process_gets_a_row_a_second_and_a_growing_one_each_time(machine: Machine, tmp_path: Path):
    line = Timeline("run", "here", str(tmp_path), machine.root)
    line.procs = [Proc(1, 1, 0, "rank", 0), Proc(2, 2, 1, "worker", 0, 3)]
    for step in range(20):
        machine.put(1, 64 * MIB, 10 * MIB)
        machine.put(2, (1 + 2 * step) * MIB, 10 * MIB)
        line.tick()
        machine.now += 0.1
    line.flush()
    rows = csvlog.read_rows(tmp_path / "memory.csv")
    steady = [row for row in rows if row["pid"] == "1" and not row["pss_bytes"]]
    growing = [row for row in rows if row["pid"] == "2" and not row["pss_bytes"]]
    assert (len(steady), len(growing)) == (2, 20)
    assert growing[-1]["rss_bytes"] == str(39 * MIB)
    assert (growing[0]["role"], growing[0]["rank"], growing[0]["worker"]) == ("worker", "0", "3")
    assert line.samples == 20
    assert line.rss_peak_bytes == 103 * MIB


def test_pss_takes_turns_about_once_a_second(machine: Machine, tmp_path: Path):
    line = Timeline("run", "here", str(tmp_path), machine.root)
    line.procs = [Proc(pid, pid, 0, "rank", pid) for pid in (1, 2, 3)]
    for pid in (1, 2, 3):
        machine.put(pid, 64 * MIB, pid * MIB)
    for _ in range(61):
        line.tick()
        machine.now += 0.1
    line.flush()
    read = [row["pid"] for row in csvlog.read_rows(tmp_path / "memory.csv") if row["pss_bytes"]]
    assert read[:6] == ["1", "2", "3", "1", "2", "3"]
    assert len(read) <= 7
    assert line.pss_peak_bytes == 6 * MIB


def test_an_expensive_read_makes_the_next_one_wait(machine: Machine, tmp_path: Path, monkeypatch):
    line = Timeline("run", "here", str(tmp_path), machine.root)
    line.procs = [Proc(1, 1, 0, "rank", 0)]
    machine.put(1, 64 * MIB, MIB)
    reads: list[float] = []
    real = timeline.procfs.read_memory

    def slow(pid: int, root: Path):
        reads.append(machine.now)
        machine.now += 0.1
        return real(pid, root)

    monkeypatch.setattr(timeline.procfs, "read_memory", slow)
    while machine.now < 110:
        line.tick()
        machine.now += 0.1
    waits = [later - earlier for earlier, later in pairwise(reads)]
    assert len(waits) == 2
    assert min(waits) >= 50  # 0.1 s in 50 s is a fifth of a percent


def test_a_process_that_is_gone_leaves_the_peaks_as_they_are(machine: Machine):
    line = Timeline("run", "here", None, machine.root)
    line.procs = [Proc(1, 1, 0), Proc(2, 2, 0)]
    machine.put(1, 64 * MIB, MIB)
    line.tick()
    line.procs = [Proc(2, 2, 0)]
    line.tick()
    assert line.rss_peak_bytes == 64 * MIB
    assert line.pss_peak_bytes == MIB


def test_what_processes_held_between_two_samples_is_in_the_peak(machine: Machine, tmp_path: Path):
    """The launcher was large before; then ranks hold 80 and 70 MiB for a moment, and one grows without a spike."""
    line = Timeline("run", "here", str(tmp_path), machine.root, pss_always=True)
    held = (
        [(1, 100, 500)],
        [(1, 100, 500), (2, 20, 80), (3, 20, 70)],
        [(1, 100, 500), (2, 90, 90), (3, 20, 70)],
    )
    procs, sums = [Proc(pid, pid, 0) for pid in (1, 2, 3)], []
    for moment in held:
        role = "rank" if len(sums) == 2 else "other"  # it is the same process when it is known as a rank
        line.procs = [replace(proc, role=role) for proc in procs[: len(moment)]]
        for pid, rss, peak in moment:
            machine.put(pid, rss * MIB, rss * MIB, peak=peak * MIB)
        line.tick()
        sums.append((line.pss_peak_bytes or 0) // MIB)
        machine.now += 0.1
    assert sums == [100, 100 + 80 + 70, 100 + 80 + 70]
    line.phase = timeline.FEEDING
    for peak in (160, 900):  # what it had before it read from shared pages, and what the mapping of those makes it
        machine.put(2, 90 * MIB, 90 * MIB, peak=peak * MIB)
        line.tick()
    assert line.phase_peaks == {timeline.BUILDING: 280 * MIB, timeline.FEEDING: 210 * MIB}
    assert line.pss_peak_bytes == 280 * MIB
    line.flush()
    rows = csvlog.read_rows(tmp_path / "memory.csv")
    spikes = [int(row["spike_bytes"]) // MIB for row in rows if row["spike_bytes"]]
    assert spikes == [0, 0, 60, 50, 0, 0, 0, 0, 70, 0]


def test_no_process_at_all_has_no_peak(machine: Machine):
    line = Timeline("run", "here", None, machine.root)
    line.tick()
    assert line.rss_peak_bytes is None and line.pss_peak_bytes is None


WORKERS = [Proc(1, 1, 0, "rank", 0), Proc(2, 2, 1, "worker", 0, 0)]


def test_idle_takes_three_polls_asleep(machine: Machine):
    machine.put(2, MIB)
    assert settle.wait_idle(WORKERS, machine.pause, 3.0, machine.root)
    assert machine.now == pytest.approx(2 * settle.POLL_S)


def test_without_workers_nobody_is_waited_for(machine: Machine):
    assert settle.wait_idle(WORKERS[:1], machine.pause, 3.0, machine.root)
    assert machine.now == 0


@pytest.mark.parametrize("state", ["R", "D"])
def test_a_worker_that_runs_or_reads_is_not_idle(machine: Machine, state: str):
    machine.put(2, MIB, state=state)
    assert not settle.wait_idle(WORKERS, machine.pause, 3.0, machine.root)


def test_a_worker_that_sleeps_between_small_pieces_of_work_is_not_idle(machine: Machine):
    def pause(seconds: float) -> None:
        machine.pause(seconds)
        machine.put(2, MIB, switches=round(machine.now / 0.005))

    machine.put(2, MIB)
    assert not settle.wait_idle(WORKERS, pause, 3.0, machine.root)


def test_settled_when_two_readings_agree(machine: Machine):
    sizes = iter([10, 20, 30, 30, 40])

    def pause(seconds: float) -> None:
        machine.pause(seconds)
        machine.put(2, next(sizes) * MIB)

    machine.put(2, 5 * MIB)
    assert settle.settled(WORKERS[1:], pause, 2.0, machine.root) == (30 * MIB, True)
    assert next(sizes) == 40


def test_memory_that_never_settles_is_said(machine: Machine):
    def pause(seconds: float) -> None:
        machine.pause(seconds)
        machine.put(2, round(machine.now * 100) * MIB)

    machine.put(2, 0)
    assert settle.settled(WORKERS[1:], pause, 2.0, machine.root)[1] is False


def test_a_rank_is_never_signalled(machine: Machine):
    assert TRIM_SIGNAL is not None
    assert settle.trim_workers(WORKERS[:1], machine.root) == []

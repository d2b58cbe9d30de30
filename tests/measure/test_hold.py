"""The barrier from end to end: a real monitor, puppets as ranks and workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardlab import csvlog
from shardlab.measure import monitor
from shardlab.measure.hold import Holder, trim

MIB = 1 << 20


def greet(ranks, run_dir: Path, timeout_s: float = 30) -> None:
    for number, rank in enumerate(ranks):
        assert rank.ask("greet", run_dir, number, timeout_s) == "ok"


def hold_all(ranks, epoch: int) -> list[str]:
    for rank in ranks:
        rank.send("hold", epoch)
    return [rank.answer() for rank in ranks]


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.01)


def test_all_ranks_are_held_read_and_let_go(puppets, start_monitor, tmp_path: Path):
    start_monitor(local_ranks=(0, 1, 2))
    ranks = puppets(3)
    greet(ranks, tmp_path)
    first = hold_all(ranks, 0)
    ranks[1].ask("private", 32)
    second = hold_all(ranks, 1)
    assert all(answer.startswith("go True ") for answer in first + second)
    anon = [[int(answer.split()[2]) for answer in answers] for answers in (first, second)]
    grown = [(after - before) / MIB for before, after in zip(*anon, strict=True)]
    assert grown == pytest.approx([0, 32, 0], abs=1)

    before, after = (monitor.read_hold(tmp_path, epoch) for epoch in (0, 1))
    assert before and after
    assert before.complete and before.processes == 3 and before.unreadable == 0 and before.reasons == {}
    assert before.used_bytes and after.used_bytes
    assert (after.used_bytes - before.used_bytes) / MIB == pytest.approx(32, abs=2)
    assert set(after.by_rank) == set(after.rank_process) == {0, 1, 2}
    assert set(after.by_role) == {"rank"}
    assert after.pss_total_bytes and after.pss_total_bytes > after.used_bytes


def test_what_the_allocator_keeps_is_trimmed_and_reported(puppets, start_monitor, tmp_path: Path):
    start_monitor(local_ranks=(0,))
    (rank,) = puppets(1)
    greet([rank], tmp_path)
    hold_all([rank], 0)
    rank.ask("retain", 32)
    hold_all([rank], 1)
    before, after = (monitor.read_hold(tmp_path, epoch) for epoch in (0, 1))
    assert before and after and before.used_bytes and after.used_bytes and after.retained_bytes is not None
    assert after.retained_bytes / MIB == pytest.approx(32, abs=2)
    assert (after.used_bytes - before.used_bytes) / MIB == pytest.approx(0, abs=2)


def test_only_the_worker_that_catches_the_signal_is_trimmed_and_no_worker_dies(
    puppets, start_monitor, tmp_path: Path
):
    start_monitor(local_ranks=(0,))
    (rank,) = puppets(1)
    greet([rank], tmp_path)
    rank.ask("fork"), rank.ask("fork")
    rank.ask("child", 0, "catch")
    for number in (0, 1):
        rank.ask("child", number, "retain", 32)
    (answer,) = hold_all([rank], 0)
    found = monitor.read_hold(tmp_path, 0)
    assert found and found.retained_bytes is not None and found.processes == 3
    assert found.retained_bytes / MIB == pytest.approx(32, abs=2)
    assert found.by_role["worker"].pss_anon_bytes and found.by_role["worker"].pss_anon_bytes > 32 * MIB
    assert int(answer.split()[2]) == found.by_rank[0].pss_anon_bytes
    assert [rank.ask("child", number, "read_all") for number in (0, 1)] == ["0", "0"]


def test_a_rank_that_never_comes_makes_the_reading_incomplete(puppets, start_monitor, tmp_path: Path):
    start_monitor(local_ranks=(0, 1, 2), hold_timeout_s=0.5)
    ranks = puppets(3)
    greet(ranks, tmp_path)
    answers = hold_all(ranks[:2], 0)
    assert all(answer.startswith("go False ") and answer.endswith("rank 2") for answer in answers)
    found = monitor.read_hold(tmp_path, 0)
    assert found and not found.complete and found.absent_ranks == (2,) and found.processes == 3
    assert ranks[2].ask("hold", 0) == "go False None this rank came after the reading"
    assert all(answer.startswith("go True ") for answer in hold_all(ranks, 1))


def test_nobody_waits_for_a_rank_that_ended_its_epoch(puppets, start_monitor, tmp_path: Path):
    start_monitor(local_ranks=(0, 1), hold_timeout_s=600)
    ranks = puppets(2)
    greet(ranks, tmp_path)
    ranks[1].ask("ended", 0)
    assert ranks[0].ask("hold", 0).startswith("go True ")
    found = monitor.read_hold(tmp_path, 0)
    assert found and found.processes == 2
    assert found.reasons["ended"] == "rank 1 ended the epoch before memory was read"


def test_nobody_waits_for_a_rank_that_died(puppets, start_monitor, tmp_path: Path):
    start_monitor(local_ranks=(0, 1), hold_timeout_s=600)
    ranks = puppets(2)
    greet(ranks, tmp_path)
    ranks[1].process.kill()
    ranks[0].send("hold", 0)
    assert ranks[0].answer().startswith("go False ")
    found = monitor.read_hold(tmp_path, 0)
    assert found and found.absent_ranks == (1,) and found.processes == 1


def test_a_rank_killed_while_held_is_absent(puppets, start_monitor, tmp_path: Path):
    start_monitor(local_ranks=(0, 1), hold_timeout_s=600)
    ranks = puppets(2)
    greet(ranks, tmp_path)
    ranks[1].send("hold", 0)
    ranks[1].process.kill()
    assert ranks[0].ask("hold", 0).startswith("go False ")


def test_ranks_go_on_when_the_monitor_is_killed_while_they_are_held(puppets, start_monitor, tmp_path: Path):
    process = start_monitor(local_ranks=(0, 1, 2), hold_timeout_s=600)
    ranks = puppets(2)
    greet(ranks, tmp_path, timeout_s=600)
    for rank in ranks:
        rank.send("hold", 0)
    process.send_signal(signal.SIGKILL)
    for rank in ranks:
        assert rank.answer().startswith("none: the monitor")
        assert rank.ask("hold", 1).startswith("none: the monitor")  # at once
        assert rank.ask("ended", 2) == "ok"


def test_a_monitor_that_hangs_is_left_after_the_timeout(puppets, start_monitor, tmp_path: Path):
    process = start_monitor(local_ranks=(0,))
    (rank,) = puppets(1)
    greet([rank], tmp_path, timeout_s=0.3)
    process.send_signal(signal.SIGSTOP)
    assert rank.ask("hold", 0) == "none: the monitor did not answer within 0.3 s"


def test_without_a_monitor_a_hold_returns_at_once(tmp_path: Path):
    holder = Holder.connect(tmp_path, 0, timeout_s=600)
    assert holder.hold(0) is None
    assert "no monitor" in holder.reason
    holder.ended(1)
    holder.close()


def test_a_run_folder_deeper_than_a_socket_address(puppets, tmp_path: Path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    (rank,) = puppets(1)
    process = monitor.start(deep, monitor.MonitorConfig("run", "here", os.getpid(), (0,)))
    try:
        greet([rank], deep)
        assert rank.ask("hold", 0).startswith("go True ")
    finally:
        assert monitor.stop(process, deep) is not None


def test_strangers_and_nonsense_do_not_disturb(puppets, start_monitor, tmp_path: Path):
    start_monitor(local_ranks=(0,))
    assert stat.S_IMODE((tmp_path / "monitor.sock").stat().st_mode) == 0o600
    (rank,) = puppets(1)
    greet([rank], tmp_path)
    unknown = b'{"rank": 9, "event": "held", "epoch": 0}\n'
    lines = [b"\x80\x04.\n", b"[]\n", unknown, b'{"rank": 0}\n', b"x" * 200_000]
    for line in lines:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(tmp_path / "monitor.sock"))
            stranger.settimeout(10)
            try:
                stranger.sendall(line)
                assert stranger.recv(1) == b""
            except ConnectionError:
                pass
    assert rank.ask("hold", 0).startswith("go True ")


def test_the_reading_waits_until_workers_are_idle(puppets, start_monitor, tmp_path: Path):
    start_monitor(local_ranks=(0,))
    (rank,) = puppets(1)
    greet([rank], tmp_path)
    rank.ask("fork")
    rank.ask("send_child", 0, "spin", 0.5)
    rank.send("hold", 0)
    rank.answer()
    found = monitor.read_hold(tmp_path, 0)
    assert found and "idle" not in found.reasons
    assert rank.ask("child_answer", 0) == "ok"


def test_stop_returns_the_account_and_the_rows_are_there(puppets, start_monitor, tmp_path: Path):
    process = start_monitor(local_ranks=(0,), results=str(tmp_path / "results"), launcher_pid=os.getpid())
    (rank,) = puppets(1)
    greet([rank], tmp_path)
    hold_all([rank], 0)
    end = monitor.stop(process, tmp_path)
    assert process.returncode == 0
    found = monitor.read_hold(tmp_path, 0)
    assert end and found and end.pss_peak_bytes and found.pss_total_bytes
    assert end.pss_peak_bytes >= found.pss_total_bytes
    assert end.rss_peak_bytes and end.samples > 0 and end.monitor_cpu_s > 0 and end.reason == ""
    rows = csvlog.read_rows(tmp_path / "results/memory.csv")
    assert {row["run_id"] for row in rows} == {"run"} and {row["node"] for row in rows} == {"here"}
    seen = {(int(row["pid"]), row["role"], row["rank"]) for row in rows}
    assert (os.getpid(), "launcher", "") in seen and (rank.pid, "rank", "0") in seen
    assert process.pid not in {pid for pid, _, _ in seen}
    assert any(row["pss_bytes"] for row in rows)


def test_a_results_folder_that_cannot_be_written_ends_no_reading(puppets, start_monitor, tmp_path: Path):
    (tmp_path / "file").write_text("")
    process = start_monitor(local_ranks=(0,), results=str(tmp_path / "file"))
    (rank,) = puppets(1)
    greet([rank], tmp_path)
    assert rank.ask("hold", 0).startswith("go True ")
    end = monitor.stop(process, tmp_path)
    assert end and "memory.csv" in end.reason


def test_sigterm_ends_it_like_stop(start_monitor, tmp_path: Path):
    process = start_monitor(local_ranks=(0,))
    process.terminate()
    assert process.wait(20) == 0
    assert json.loads((tmp_path / "monitor-end.json").read_text())["pss_peak_bytes"] is None


def test_stop_of_a_monitor_that_was_killed_is_none(start_monitor, tmp_path: Path):
    process = start_monitor(local_ranks=(0,))
    process.kill()
    assert monitor.stop(process, tmp_path) is None


@pytest.mark.parametrize("clean", [True, False])
def test_the_monitor_ends_with_its_process_and_clears_up_if_told_to(tmp_path: Path, clean: bool):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    config = monitor.MonitorConfig("run", "here", parent.pid, (0,), clean_run_dir=clean)
    process = monitor.start(run_dir, config)
    parent.kill()
    assert process.wait(20) == 0  # although nobody has reaped the parent yet
    assert run_dir.exists() is not clean
    parent.communicate()


def test_the_monitor_is_out_of_reach_of_ctrl_c(start_monitor):
    process = start_monitor(local_ranks=(0,))
    assert os.getpgid(process.pid) != os.getpgid(0)


def test_trim_says_whether_it_could():
    assert trim() is (sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION") is not None)

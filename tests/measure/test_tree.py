from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardlab.measure import tree
from shardlab.measure.procfs import Stat

FORKSERVER = "python -c from multiprocessing.forkserver import main; main(5, 6, ['__main__'])"


def stat_text(pid: int, ppid: int, state: str = "S", start: int = 0) -> str:
    start = start or pid
    return f"{pid} (py (x)) {state} {ppid} 1 1 0 -1 0 0 0 0 0 10 20 3 4 20 0 1 0 {start} 1 2 3 4 5 99 6"


def fake_proc(root: Path, parents: dict[int, int], children_file: bool) -> Path:
    for pid, ppid in parents.items():
        (root / f"{pid}/task/{pid}").mkdir(parents=True)
        (root / f"{pid}/stat").write_text(stat_text(pid, ppid))
        if children_file:
            own = [str(child) for child, parent in parents.items() if parent == pid]
            (root / f"{pid}/task/{pid}/children").write_text(" ".join(own) + " ")
    return root


@pytest.mark.parametrize("children_file", [True, False])
def test_descendants_are_found_with_and_without_the_children_file(tmp_path: Path, children_file: bool):
    root = fake_proc(tmp_path, {1: 0, 10: 1, 11: 10, 12: 10, 13: 12, 20: 1}, children_file)
    assert list(tree.descendants([10], root)) == [10, 11, 12, 13]
    assert list(tree.descendants([10, 20], root, skip=[12])) == [10, 20, 11]
    assert tree.descendants([99], root) == {}


@pytest.mark.parametrize("children_file", [True, False])
def test_a_process_named_twice_is_counted_once(tmp_path: Path, children_file: bool):
    root = fake_proc(tmp_path, {1: 0, 10: 1, 11: 10}, children_file)
    assert sorted(tree.descendants([11, 10, 11], root)) == [10, 11]


def roles(processes: dict[int, tuple[int, int, str]], launcher: int | None, ranks: dict[int, int]):
    """``processes`` is pid to (parent, address of the stack, command line); pids start in their order."""
    found = {pid: Stat(parent, "S", pid, 0, 0, stack) for pid, (parent, stack, _) in processes.items()}
    procs = tree.classify(found, launcher, ranks, lambda pid: processes[pid][2] if pid in processes else "")
    return {proc.pid: (proc.role, proc.rank, proc.worker) for proc in procs}


def test_roles_below_a_launcher_that_spawns():
    assert roles(
        {
            10: (1, 1, "python -m shardlab.profile"),
            11: (10, 2, "python -c from multiprocessing.resource_tracker import main;main(5)"),
            12: (10, 3, "python -c from multiprocessing.spawn import spawn_main --multiprocessing-fork"),
            13: (10, 4, "python -c from multiprocessing.spawn import spawn_main --multiprocessing-fork"),
            14: (10, 5, "git status"),
            22: (13, 6, "python -c from multiprocessing.spawn import spawn_main --multiprocessing-fork"),
            21: (13, 7, "python -c from multiprocessing.spawn import spawn_main --multiprocessing-fork"),
            23: (13, 8, "/site-packages/torch/bin/torch_shm_manager"),
        },
        launcher=10,
        ranks={0: 12, 1: 13},
    ) == {
        10: ("launcher", None, None),
        11: ("tracker", None, None),
        12: ("rank", 0, None),
        13: ("rank", 1, None),
        14: ("other", None, None),
        21: ("worker", 1, 0),
        22: ("worker", 1, 1),
        23: ("tracker", 1, None),
    }


def test_ranks_forked_by_a_forkserver_keep_its_command_line_and_are_still_ranks_with_workers():
    assert roles(
        {
            10: (1, 1, "python -m shardlab.profile"),
            11: (10, 2, FORKSERVER),
            12: (11, 2, FORKSERVER),
            13: (12, 2, FORKSERVER),
            14: (11, 2, FORKSERVER),
        },
        launcher=10,
        ranks={0: 12},
    ) == {
        10: ("launcher", None, None),
        11: ("forkserver", None, None),
        12: ("rank", 0, None),
        13: ("worker", 0, 0),
        14: ("other", None, None),
    }


def test_children_of_a_ranks_own_forkserver_are_its_workers():
    processes = {12: (1, 2, FORKSERVER), 13: (12, 3, FORKSERVER), 14: (13, 3, FORKSERVER)}
    assert roles(processes, launcher=None, ranks={4: 12}) == {
        12: ("rank", 4, None), 13: ("forkserver", 4, None), 14: ("worker", 4, 0),
    }


def test_a_zombie_has_no_role():
    found = {10: Stat(1, "S", 1, 0, 0), 11: Stat(10, "Z", 2, 0, 0)}
    assert [proc.pid for proc in tree.classify(found, 10, {}, lambda pid: "")] == [10]


def test_a_number_used_again_is_another_process():
    start = tree.start_ticks_of(os.getpid())
    assert tree.is_alive(os.getpid(), start)
    assert start is not None and not tree.is_alive(os.getpid(), start + 1)


def test_a_process_that_waits_to_be_reaped_is_not_alive():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not tree.is_alive(process.pid)
    process.wait()


def test_cpu_of_a_living_child_of_another_process_is_counted(puppets):
    (puppet,) = puppets(1)
    puppet.ask("fork")
    before = tree.tree_cpu_s(puppet.pid)
    puppet.ask("child", 0, "spin", 0.3)
    assert 0.25 < tree.tree_cpu_s(puppet.pid) - before < 1.0


def test_cpu_of_a_child_that_ended_is_counted():
    before = tree.tree_cpu_s(os.getpid())
    code = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert 0.3 <= tree.tree_cpu_s(os.getpid()) - before < 1.5


def test_cpu_of_this_process_is_finer_than_a_tick():
    before = tree.tree_cpu_s(os.getpid())
    until = time.process_time() + 0.002
    while time.process_time() < until:
        pass
    spent = tree.tree_cpu_s(os.getpid()) - before
    assert 0.002 <= spent < 0.05


def test_cpu_of_a_process_that_is_gone_is_zero():
    assert tree.tree_cpu_s(2**22 + 1) == 0.0


def test_without_proc_psutil_finds_the_same_children(tmp_path: Path, puppets):
    puppets(2)
    none = tmp_path / "no-such-folder"
    assert set(tree.descendants([os.getpid()], none)) == set(tree.descendants([os.getpid()]))
    assert tree.is_alive(os.getpid(), root=none)

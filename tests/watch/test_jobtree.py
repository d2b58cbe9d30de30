"""Roles, ranks and families of real process trees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shardlab.watching.facts import Member
from shardlab.watching.jobtree import JobTree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")

NESTED = """
import multiprocessing as mp, os, sys, time

def inner():
    time.sleep(60)

def rank(method):
    context = mp.get_context(method)
    workers = [context.Process(target=inner) for _ in range(2)]
    for worker in workers:
        worker.start()
    time.sleep(60)

if __name__ == "__main__":
    outer, method = sys.argv[1:]
    context = mp.get_context(outer)
    ranks = [context.Process(target=rank, args=(method,)) for _ in range(2)]
    for process in ranks:
        process.start()
    time.sleep(60)
"""
SAYS_RANK = """
import os, subprocess, sys, time
if len(sys.argv) > 1:
    if os.fork():
        time.sleep(60)
    time.sleep(60)
for rank in range(2):
    subprocess.Popen([sys.executable, __file__, "rank"], env=os.environ | {"RANK": str(rank)})
time.sleep(60)
"""


@contextmanager
def tree_of(script: Path, text: str, *args: str, until: Callable[[list[Member]], bool]) -> Iterator[list[Member]]:
    """The members of a job once there are enough of them; all of it is ended after."""
    script.write_text(text)
    job = subprocess.Popen([sys.executable, str(script), *args], stderr=subprocess.DEVNULL)
    tree = JobTree((job.pid,))
    members: list[Member] = []
    try:
        deadline = time.monotonic() + 30
        while not until(members) and time.monotonic() < deadline:
            time.sleep(0.1)
            members = tree.refresh()
        yield members
        assert {(m.pid, m.worker) for m in tree.refresh()} == {(m.pid, m.worker) for m in members}
    finally:
        for member in reversed(members):
            subprocess.run(["kill", "-KILL", str(member.pid)], check=False, stderr=subprocess.DEVNULL)
        job.kill()
        job.wait()


def of_role(members: list[Member], role: str) -> list[Member]:
    return [member for member in members if member.role == role]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("outer", ["fork", "spawn"])
def test_ranks_workers_and_how_they_were_started(outer: str, method: str, tmp_path: Path):
    def whole(members: list[Member]) -> bool:
        return sum(m.start_method == method and m.role == "worker" for m in members) == 4

    with tree_of(tmp_path / "job.py", NESTED, outer, method, until=whole) as members:
        ranks, workers = of_role(members, "rank"), of_role(members, "worker")
        assert sorted(rank.rank for rank in ranks if rank.rank is not None) == [0, 1]
        assert {rank.start_method for rank in ranks} == {outer}
        assert [len([w for w in workers if w.rank == rank]) for rank in range(2)] == [2, 2]
        assert {worker.start_method for worker in workers} == {method}
        assert sorted((w.rank, w.worker) for w in workers) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        family = {rank.rank: rank.family for rank in ranks}
        shares = [worker.family == family[worker.rank] for worker in workers]
        assert all(shares) if method == "fork" else not any(shares)
        (launcher,) = of_role(members, "launcher")
        assert (launcher.family in family.values()) == (outer == "fork")
        assert len(of_role(members, "forkserver")) == (2 if method == "forkserver" else 0)


def test_a_rank_says_so_in_its_environment_and_what_it_forks_is_its_own(tmp_path: Path):
    with tree_of(tmp_path / "job.py", SAYS_RANK, until=lambda members: len(members) == 5) as members:
        assert sorted((m.role, m.rank, m.start_method) for m in members if m.rank is not None) == [
            ("rank", 0, "program"), ("rank", 1, "program"), ("worker", 0, "fork"), ("worker", 1, "fork"),
        ]  # fmt: skip
        assert [m.role for m in members if m.rank is None] == ["launcher"]


def test_below_wrappers_a_lone_script_is_rank_0(tmp_path: Path):
    (tmp_path / "train.py").write_text("import time; time.sleep(60)")
    wrapped = f"import os; os.execvp('sh', ['sh', '-c', 'timeout 60 {sys.executable} {tmp_path}/train.py; true'])"
    with tree_of(tmp_path / "job.py", wrapped, until=lambda members: len(members) == 3) as members:
        assert sorted((m.role, m.rank) for m in members) == [("launcher", None), ("launcher", None), ("rank", 0)]


def test_a_program_that_becomes_another_is_what_it_became(tmp_path: Path):
    script = tmp_path / "job.py"
    script.write_text("""
import os, sys, time
if "RANK" not in os.environ:
    sys.stdin.readline()
    os.execve(sys.executable, [sys.executable, __file__], os.environ | {"RANK": "3"})
time.sleep(60)
""")
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, text=True) as job:
        tree = JobTree((job.pid,))
        try:
            settle(lambda: [(m.role, m.rank) for m in tree.refresh()] == [("rank", 0)])
            assert job.stdin is not None
            job.stdin.write("go\n")
            job.stdin.flush()
            settle(lambda: [(m.role, m.rank) for m in tree.refresh()] == [("rank", 3)])
        finally:
            job.kill()


def test_what_was_about_to_become_another_program_leaves_its_number_to_a_worker(tmp_path: Path):
    script, becomes, forks = (tmp_path / name for name in ("job.py", "becomes", "forks"))
    script.write_text("""
import os, sys, time
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.02)
if not os.fork():
    wait_for(sys.argv[1])
    os.execvp("sleep", ["sleep", "60"])
wait_for(sys.argv[2])
os.fork()
time.sleep(60)
""")
    command = [sys.executable, str(script), str(becomes), str(forks)]
    with subprocess.Popen(command, env=os.environ | {"RANK": "0"}) as job:
        tree = JobTree((job.pid,))
        try:
            settle(lambda: [m.worker for m in of_role(tree.refresh(), "worker")] == [0])
            becomes.touch()
            settle(lambda: [m.role for m in tree.refresh()] == ["rank", "other"])
            forks.touch()
            settle(lambda: [m.worker for m in of_role(tree.refresh(), "worker")] == [0])
        finally:
            for member in reversed(tree.refresh()):
                os.kill(member.pid, signal.SIGKILL)


def test_workers_that_outlive_their_rank_stay_what_they_were(tmp_path: Path):
    def whole(members: list[Member]) -> bool:
        return len(of_role(members, "worker")) == 4

    script = tmp_path / "job.py"
    script.write_text(NESTED)
    job = subprocess.Popen([sys.executable, str(script), "fork", "fork"])
    tree = JobTree((job.pid,))
    try:
        settle(lambda: whole(tree.refresh()))
        before = {m.pid: m for m in tree.refresh()}
        (first,) = [m for m in before.values() if m.role == "rank" and m.rank == 0]
        os.kill(first.pid, signal.SIGKILL)
        settle(lambda: first.pid not in [m.pid for m in tree.refresh()])
        after = {m.pid: replace(m, ppid=before[m.pid].ppid) for m in tree.refresh()}
        assert after == {pid: m for pid, m in before.items() if pid != first.pid}
    finally:
        for pid in reversed(before):
            subprocess.run(["kill", "-KILL", str(pid)], check=False, stderr=subprocess.DEVNULL)
        job.kill()
        job.wait()


def test_who_compiles_for_a_script_is_no_rank_of_it(tmp_path: Path):
    compiles = tmp_path / "torch" / "_inductor" / "compile_worker"
    compiles.mkdir(parents=True)
    (compiles / "__main__.py").write_text("""
import multiprocessing as mp, time
workers = [mp.get_context("fork").Process(target=time.sleep, args=(60,)) for _ in range(2)]
for worker in workers: worker.start()
time.sleep(60)
""")
    text = f"import subprocess, sys; subprocess.run([sys.executable, '{compiles}/__main__.py'])"
    with tree_of(tmp_path / "job.py", text, until=lambda members: len(members) == 4) as members:
        assert [(m.role, m.rank) for m in members] == [("rank", 0), ("other", 0), ("other", 0), ("other", 0)]


def test_a_script_whose_workers_take_their_name_late_is_rank_0_again(tmp_path: Path):
    text = """
import multiprocessing as mp, time
def work():
    time.sleep(2)
    open("/proc/self/comm", "w").write("pt_data_worker")
    time.sleep(60)
if __name__ == "__main__":
    workers = [mp.get_context("fork").Process(target=work) for _ in range(2)]
    for worker in workers: worker.start()
    time.sleep(60)
"""
    with tree_of(tmp_path / "job.py", text, until=lambda ms: len(of_role(ms, "worker")) == 2) as members:
        assert [(m.role, m.rank) for m in members] == [("rank", 0), ("worker", 0), ("worker", 0)]


def test_a_launcher_whose_ranks_have_ended_stays_one(tmp_path: Path):
    script = tmp_path / "job.py"
    script.write_text(SAYS_RANK)
    with subprocess.Popen([sys.executable, str(script)]) as job:
        tree = JobTree((job.pid,))
        try:
            settle(lambda: len(of_role(tree.refresh(), "worker")) == 2)
            for member in [m for m in tree.refresh() if m.rank is not None]:
                os.kill(member.pid, signal.SIGKILL)
            settle(lambda: len(tree.refresh()) == 1)
            assert [(m.role, m.rank) for m in tree.refresh()] == [("launcher", None)]
        finally:
            job.kill()


def test_a_number_of_a_worker_is_given_once(tmp_path: Path):
    epochs = """
import multiprocessing as mp, time
def work():
    open("/proc/self/comm", "w").write("pt_data_worker")
    time.sleep(1.5)
if __name__ == "__main__":
    for epoch in range(20):
        workers = [mp.get_context("fork").Process(target=work) for _ in range(2)]
        for worker in workers: worker.start()
        for worker in workers: worker.join()
"""
    script = tmp_path / "job.py"
    script.write_text(epochs)
    job = subprocess.Popen([sys.executable, str(script)])
    tree, numbers = JobTree((job.pid,)), dict[tuple[int, int], int | None]()
    try:

        def three_epochs() -> bool:
            numbers.update({(m.pid, m.start_ticks): m.worker for m in tree.refresh() if m.role == "worker"})
            return len(numbers) >= 6

        settle(three_epochs)
        assert sorted(numbers.values(), key=str)[:6] == [0, 1, 2, 3, 4, 5]
    finally:
        for member in tree.refresh():
            subprocess.run(["kill", "-KILL", str(member.pid)], check=False, stderr=subprocess.DEVNULL)
        job.kill()
        job.wait()


def settle(true: Callable[[], bool]) -> None:
    """Wait until it is."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)

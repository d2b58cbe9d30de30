"""What the dead leave is swept, where nobody was left to do it: semaphores that spawned processes open, folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.launch import rundir
from shardlab.process import SHM, identity, remove_run_folder

SIGNED = """
import multiprocessing, sys
from shardlab.launch import rundir
rundir.sign_semaphores()
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="semaphores have no files here")
def test_semaphores_go_when_their_owner_and_its_tracker_were_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SIGNED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        file = Path("/dev/shm") / f"sem.{process.stdout.readline().strip().removeprefix('/')}"
        rundir.sweep(tmp_path)
        assert file.exists()  # its owner lives
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert file.exists()
    rundir.sweep(tmp_path)
    assert not file.exists()


def test_a_killed_owner_that_nobody_has_reaped_is_dead(tmp_path: Path) -> None:
    folder = tmp_path / f"{rundir.PREFIX}left"
    folder.mkdir()
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        (folder / rundir.OWNER).write_text(str(identity(process.pid)))
        assert rundir.sweep(tmp_path) == []
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays in the table of processes
        assert rundir.sweep(tmp_path) == [folder]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not SHM.is_dir(), reason="batches have no files here")
@pytest.mark.parametrize("is_the_worker", [False, True])
def test_batches_of_a_dead_worker_go_and_not_those_of_who_has_its_number_now(
    is_the_worker: bool, tmp_path: Path
) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    batch = SHM / f"torch_{process.pid}_1234_0"
    try:
        batch.touch()
        signed = identity(process.pid) if is_the_worker else f"{process.pid} 1"
        (tmp_path / f"worker-{process.pid}").write_text(str(signed))
        remove_run_folder(tmp_path)
        assert batch.exists() is not is_the_worker
    finally:
        batch.unlink(missing_ok=True)
        process.kill()
        process.communicate()

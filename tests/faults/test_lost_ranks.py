"""A process that others wait for is gone: they end soon, and what is named is what died or failed first.

The scene of each test checks that nothing is left.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
from multiprocessing import resource_sharer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from faults.scene import GONE_WITHIN_S, TROUBLED, Run, Scene, wait_for
from shardlab.engine import lifeline
from shardlab.engine.lifeline import forget_workers, read_failures, write_failure
from shardlab.errors import RunFailed
from shardlab.launch.agent import first_failure
from shardlab.process import die_with_starter
from shardlab.ring.members import died
from shardlab.store import NodeShare, StoreNote, mmap, shared
from shardlab.store._share import build_once
from shardlab.world import World

RANKS = (
    "--nproc", "2", "--start-method", "fork", "--worker-start-method", "fork", "--compute", "50ms", "--quiet",
)  # fmt: skip
RING = ("--sampler", "ring", "--dataset", f"{TROUBLED}:calm", *RANKS)
WORKERS = ("--sampler", "distributed", "--workers", "1", *RANKS)
LEADER, FOLLOWER = World(0, 2, 0, 2), World(1, 2, 1, 2)


def ring_of(scene: Scene, run: Run, readers: int) -> tuple[list[int], list[int]]:
    """The processes of its two ranks and of its readers, which rank 0 starts; they read by then."""
    leader = scene.pid_of_rank(0)
    found = wait_for(lambda: len(each := psutil.Process(leader).children()) == readers and each, "readers")
    others = [child.pid for child in psutil.Process(run.pid).children() if child.pid != leader]
    (follower,) = (pid for pid in others if "shardlab.measure.monitor" not in scene.processes()[pid])
    return [leader, follower], [reader.pid for reader in found]


def test_a_rank_that_hears_nothing_does_not_delay_the_end(scene: Scene) -> None:
    run = scene.start("--dataset", f"{TROUBLED}:deaf", *RANKS)
    scene.pid_of_rank(1)
    os.kill(scene.pid_of_rank(0), signal.SIGKILL)
    ended = run.wait(2 * GONE_WITHIN_S)
    assert ended.code == 1
    assert ended.message.startswith("rank 0 failed: killed by SIGKILL")


FOLLOWS = """
import sys, time
from pathlib import Path
from shardlab.engine import lifeline
lifeline.follow(Path(sys.argv[1]))
time.sleep(3600)
"""


def test_a_rank_that_starts_after_its_launcher_was_killed_ends_at_once(tmp_path: Path) -> None:
    os.close(lifeline.create(tmp_path / "pipe"))
    ended = subprocess.run([sys.executable, "-c", FOLLOWS, str(tmp_path / "pipe")], check=False, timeout=60)
    assert ended.returncode == 1


# The ring


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_of_a_ring_is_named_with_the_signal(rank: int, scene: Scene) -> None:
    run = scene.start(*RING)
    ranks, _ = ring_of(scene, run, readers=1)
    os.kill(ranks[rank], signal.SIGKILL)
    ended = run.wait()
    assert ended.code == 1
    assert ended.message.startswith(f"rank {rank} failed: killed by SIGKILL")


@pytest.mark.parametrize("readers", [1, 2])
def test_a_killed_reader_of_a_ring_is_named(readers: int, scene: Scene) -> None:
    run = scene.start(*RING, "--workers", str(readers))
    _, reading = ring_of(scene, run, readers)
    os.kill(reading[-1], signal.SIGKILL)
    ended = run.wait()
    assert ended.code == 1
    assert re.search(r"rank [01]: reader \d of the ring died \(exit code -9\)$", ended.message)


@pytest.mark.parametrize(
    ("lost", "is_echo"),
    [
        ("Connection closed by peer [127.0.0.1]:40111", True),
        (died(SimpleNamespace(members=np.ones((2, 8), np.int64)), 1), True),  # type: ignore[arg-type]
        ("rank 1 of the node left the ring, and the others wait for it", True),
        ("reader 1 of the ring died (exit code -9)", False),
        ("this disk is full", False),
    ],
)
def test_what_a_rank_says_of_another_is_not_the_cause(lost: str, is_echo: bool, tmp_path: Path) -> None:
    assert write_failure(tmp_path, 0, RunFailed(lost)).is_echo == is_echo


@pytest.mark.parametrize(
    ("exit_codes", "said"),
    [
        ([1, -9, 143], "rank 1 failed: killed by SIGKILL"),
        ([1, 143, 143], "rank 0 lost another rank: RunFailed: Connection reset by peer"),
        ([], "rank 0 lost another rank: RunFailed: Connection reset by peer"),
    ],
)
def test_a_killed_rank_is_named_where_torch_names_one_that_complains(
    exit_codes: list[int], said: str, tmp_path: Path
) -> None:
    write_failure(tmp_path, 0, RunFailed("Connection reset by peer"))
    job: Any = SimpleNamespace(folder=tmp_path)
    error = SimpleNamespace(get_first_failure=lambda: (0, SimpleNamespace(exitcode=1)))
    ranks: Any = [SimpleNamespace(exitcode=code) for code in exit_codes]
    assert str(first_failure(job, error, ranks)).startswith(said)


# The one copy of a node


def share(folder: Path, world: World, source: Any = None) -> NodeShare:
    return NodeShare(world=world, run_dir=folder, source=source)


def broken() -> Any:
    raise ValueError("no such image")


@pytest.mark.parametrize("store", [shared, mmap])
def test_a_rank_that_waits_for_the_copy_ends_with_the_words_of_the_one_that_failed(
    store: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no such image"):
        store.open(share(tmp_path, LEADER, broken))
    said = "local rank 0 could not build the shared copy: ValueError: no such image"
    with pytest.raises(RunFailed, match=said) as raised:
        store.open(share(tmp_path, FOLLOWER))
    assert write_failure(tmp_path, 1, raised.value).is_echo


def kill_self() -> StoreNote:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_rank_that_waits_for_the_copy_ends_where_the_one_that_builds_it_was_killed(tmp_path: Path) -> None:
    building = multiprocessing.get_context("fork").Process(
        target=build_once, args=(share(tmp_path, LEADER), kill_self)
    )
    building.start()
    said = f"could not build the shared copy: its process {building.pid} died"
    with pytest.raises(RunFailed, match=said) as raised:
        build_once(share(tmp_path, FOLLOWER), StoreNote)
    building.join()
    assert write_failure(tmp_path, 1, raised.value).is_echo


@pytest.mark.parametrize("sampler", ["keyed", "ring", "distributed"])
def test_a_dataset_that_fails_in_rank_0_alone_is_told_by_rank_0(sampler: str, scene: Scene) -> None:
    ended = scene.run(
        "--sampler", sampler, "--store", "shared", "--dataset", f"{TROUBLED}:failing_in_rank_0",
        *RANKS,
    )  # fmt: skip
    assert ended.code == 1
    assert ended.message.startswith("rank 0 failed: OSError: the drive is not there")


# A worker


@pytest.mark.parametrize("data", ["calm", "handing_over"])
def test_a_killed_worker_is_told_by_its_rank_in_one_sentence(data: str, scene: Scene) -> None:
    run = scene.start(*WORKERS, "--dataset", f"{TROUBLED}:{data}")
    os.kill(scene.pid_of_rank(1), signal.SIGKILL)  # its worker, which reads for it
    ended = run.wait()
    assert ended.code == 1
    assert re.match(r"rank 1: DataLoader worker \(pid\S* \d+\) (exited|is killed)", ended.message)


def test_what_workers_had_in_shared_memory_goes_with_a_killed_launcher(scene: Scene) -> None:
    run = scene.start(*WORKERS, "--dataset", f"{TROUBLED}:handing_over")
    scene.pid_of_rank(0)
    scene.pid_of_rank(1)
    run.process.kill()
    run.wait()
    scene.wait_until_nobody_lives()
    scene.run("--dataset", "synthetic:n=0:8", "--quiet")


class FailsAsAWorkerEnds(Exception):
    def __str__(self) -> str:
        subprocess.run(["true"], check=True)
        return "the cause"


def test_a_worker_that_ends_meanwhile_does_not_keep_a_rank_from_saying_why_it_failed(tmp_path: Path) -> None:
    def alarm(*_: object) -> None:
        raise RuntimeError("a worker has ended")  # as torch's handler does

    before = signal.signal(signal.SIGCHLD, alarm)
    try:
        forget_workers()
        write_failure(tmp_path, 0, FailsAsAWorkerEnds())
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert [failure.message for failure in read_failures(tmp_path)] == ["the cause"]


def serve_a_rank_that_goes(said: Path) -> None:
    """As a worker, whose thread hands over what lies in a batch; one who asks for it is gone at once."""
    sys.stderr = said.open("w")
    die_with_starter()
    handed_over: Any = resource_sharer.DupFd(0)
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(handed_over._id[0])
    handed_over.detach()  # one who asks in earnest is served after it
    sys.stderr.close()


def test_a_worker_says_nothing_where_its_rank_goes_while_it_hands_over_a_batch(tmp_path: Path) -> None:
    said = tmp_path / "said"
    worker = multiprocessing.get_context("fork").Process(target=serve_a_rank_that_goes, args=(said,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert said.read_text() == ""

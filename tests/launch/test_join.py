"""As ranks of a job that torchrun or accelerate launch started: the same figures, the same manners."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.scene import TROUBLED, Ended, Run, Scene, stage

BIN = Path(sys.executable).parent
TORCHRUN = (str(BIN / "torchrun"), "--nproc-per-node", "2")
ACCELERATE = (str(BIN / "accelerate"), "launch", "--num_processes", "2")
PROFILE = ("-m", "shardlab.profile")
CALM = ("--dataset", f"{TROUBLED}:calm", "--compute", "50ms")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with stage(tmp_path) as scene:
        yield scene


def joined(launcher: str, scene: Scene, *flags: str) -> Run:
    """Start two ranks by a launcher whose own temporary files are elsewhere: it leaves them behind."""
    elsewhere = str(scene.folder / "launcher")
    if launcher == "torchrun":
        return scene.start(*flags, command=(*TORCHRUN, "--log-dir", elsewhere, *PROFILE))
    command = (*ACCELERATE, "--multi_gpu", "--log_dir", elsewhere, *PROFILE)
    return scene.start(*flags, command=command, env={"ACCELERATE_USE_CPU": "1"})


def sentences(ended: Ended) -> list[str]:
    """What shardlab said, among all that the launcher says."""
    return [line for line in ended.err.splitlines() if line.startswith("shardlab: ")]


def counters(row: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on who starts the ranks."""
    names = ("reads", "delivered", "steps", "order_hash")
    each_rank = {name: [rank[name] for rank in row["ranks"]] for name in names}
    whole = {name: row[name] for name in ("order_hash", "distinct", "duplicates", "missing", "samples")}
    return each_rank | {f"run {name}": value for name, value in whole.items()}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["distributed", "accelerate"])
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_joined_job_measures_what_our_own_launcher_does(launcher: str, sampler: str, scene: Scene) -> None:
    flags = ("--dataset", "synthetic:256MiB:10007", "--sampler", sampler, "--json", "--quiet")
    ours = scene.run("--nproc", "2", *flags)
    assert ours.code == 0, ours.err
    theirs = joined(launcher, scene, *flags).wait()
    assert theirs.code == 0, theirs.err
    expected, row = json.loads(ours.out), json.loads(theirs.out)
    assert counters(row) == counters(expected)
    assert row["copies"] is not None, row["reason"]
    assert row["copies"] == pytest.approx(expected["copies"], abs=0.1)
    assert row["copies"] == pytest.approx(2, abs=0.1)


def test_a_joined_job_delivers_every_sample_once_and_prints_one_object(scene: Scene) -> None:
    ended = joined("torchrun", scene, "--dataset", "synthetic:n=50:8", "--json", "--warmup", "0").wait()
    assert ended.code == 0, ended.err
    row = json.loads(ended.out)
    assert [rank["delivered"] for rank in row["ranks"]] == [25, 25]
    assert (row["distinct"], row["missing"], row["world_size"]) == (50, 0, 2)
    assert [kept["run_id"] for kept in scene.rows("runs.csv")] == [row["run_id"]]
    assert [kept["rank"] for kept in scene.rows("ranks.csv")] in (["0", "1"], ["1", "0"])


def test_an_exception_in_a_joined_rank_is_told_once_with_its_rank_and_line(scene: Scene) -> None:
    ended = joined("torchrun", scene, "--dataset", f"{TROUBLED}:failing_on_1").wait()
    assert ended.code == 1
    (said,) = sentences(ended)
    assert "rank 1 failed: ValueError: this sample is rotten" in said
    assert f"{TROUBLED}:" in said
    assert "Connection closed by peer" not in ended.err


@pytest.mark.slow
def test_wrong_usage_in_a_joined_job_is_told_by_rank_0_alone(scene: Scene) -> None:
    ended = joined("torchrun", scene, "--dataset", f"{TROUBLED}:absent").wait()
    assert ended.code == 1  # torchrun's own; it says that the rank ended with 2
    (said,) = sentences(ended)
    assert "must define a callable of this name, but got 'absent'" in said


def test_accelerate_launch_that_starts_one_of_two_processes_is_refused_with_the_cure(scene: Scene) -> None:
    command = (*ACCELERATE, "--cpu", *PROFILE)
    ended = scene.run("--dataset", "synthetic:n=50:8", command=command)
    (said,) = sentences(ended)
    assert "must start the 2 processes that it was asked for" in said
    assert "Cure: ACCELERATE_USE_CPU=1 accelerate launch --multi_gpu --num_processes 2" in said
    assert "non-zero exit status 2" in ended.err  # of our command, as its launcher saw it
    assert not scene.results.exists()


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("--workers", "1", "--worker-start-method", "fork"), marks=pytest.mark.slow),
        ("--workers", "1", "--worker-start-method", "forkserver"),
    ],
    ids=["no workers", "fork", "forkserver"],
)
def test_nothing_outlives_a_killed_torchrun(workers: tuple[str, ...], scene: Scene) -> None:
    run = joined("torchrun", scene, *CALM, *workers)
    scene.pid_of_rank(0)
    scene.pid_of_rank(1)
    assert len(scene.processes()) >= 4  # torchrun, two ranks, the monitor
    run.process.kill()
    run.wait()
    scene.wait_until_nobody_lives()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_an_interrupted_torchrun(number: int, scene: Scene) -> None:
    run = joined("torchrun", scene, *CALM)
    scene.pid_of_rank(0)
    scene.pid_of_rank(1)
    os.killpg(run.pid, number)
    assert run.wait().code != 0
    scene.wait_until_nobody_lives()

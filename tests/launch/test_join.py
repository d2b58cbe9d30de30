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

from faults.scene import TROUBLED, Scene, stage

BIN = Path(sys.executable).parent
TORCHRUN = (str(BIN / "torchrun"), "--nproc-per-node", "2", "-m", "shardlab.profile")
ACCELERATE = (str(BIN / "accelerate"), "launch")
TWO_GPUS = (*ACCELERATE, "--multi_gpu", "--num_processes", "2", "-m", "shardlab.profile")
LAUNCHERS = {
    "torchrun": (TORCHRUN, {}),
    "accelerate": (TWO_GPUS, {"ACCELERATE_USE_CPU": "1"}),
}
QUIET = ("--quiet",)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with stage(tmp_path) as scene:
        yield scene


def counters(row: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on who starts the ranks."""
    names = ("reads", "delivered", "steps", "order_hash")
    each_rank = {name: [rank[name] for rank in row["ranks"]] for name in names}
    whole = {name: row[name] for name in ("order_hash", "distinct", "duplicates", "missing", "samples")}
    return each_rank | {f"run {name}": value for name, value in whole.items()}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["distributed", "accelerate"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_joined_job_counts_as_our_own_launcher_does(launcher: str, sampler: str, scene: Scene) -> None:
    flags = ("--dataset", "synthetic:256MiB:10007", "--sampler", sampler, "--json", *QUIET)
    ours = scene.run("--nproc", "2", *flags)
    assert ours.code == 0, ours.err
    command, env = LAUNCHERS[launcher]
    theirs = scene.run(*flags, command=command, env=env)
    assert theirs.code == 0, theirs.err
    expected, row = json.loads(ours.out), json.loads(theirs.out)
    assert counters(row) == counters(expected)
    assert row["copies"] == pytest.approx(expected["copies"], abs=0.1)
    assert row["copies"] == pytest.approx(2, abs=0.1)

"""Training under other launchers, on one host and on two: same figures, same curve, nothing left."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.scene import Run, Scene, stage
from launch.hosts import Host, two_hosts
from launch.pictures import FEW, MANY
from shardlab import train
from shardlab.launch.lonely import processes_asked_for
from shardlab.world import JOIN_VARIABLES

BIN = Path(sys.executable).parent
TORCHRUN = str(BIN / "torchrun")
ACCELERATE = (str(BIN / "accelerate"), "launch", "--num_processes", "2")
TRAIN = ("-m", "shardlab.train")
PICTURES = str(Path(__file__).with_name("pictures.py"))
FROM_A_FUNCTION = str(Path(__file__).with_name("from_a_function.py"))
SBATCH = Path(__file__).parents[2] / "experiments" / "slurm.sbatch"
EPOCH = (
    "--dataset", f"{PICTURES}:many", "--eval-dataset", f"{PICTURES}:few", "--model", f"{PICTURES}:linear",
    "--batch-size", "512", "--json", "--quiet",
)  # fmt: skip
STEPS = MANY // (2 * 512)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with stage(tmp_path) as scene:
        yield scene


def two_ranks(launcher: str, scene: Scene, *flags: str) -> Run:
    """Start two ranks; the temporary files of the launcher itself are elsewhere, as it leaves them behind."""
    elsewhere = str(scene.folder / "launcher")
    if launcher == "torchrun":
        command: tuple[str, ...] = (TORCHRUN, "--nproc-per-node", "2", "--log-dir", elsewhere, *TRAIN)
        return scene.start(*flags, command=command)
    if launcher == "accelerate":
        command = (*ACCELERATE, "--multi_gpu", "--log_dir", elsewhere, *TRAIN)
        return scene.start(*flags, command=command, env={"ACCELERATE_USE_CPU": "1"})
    return scene.start(elsewhere, *flags, command=(sys.executable, FROM_A_FUNCTION))


def delivered(scene: Scene, run_id: str) -> Counter[int]:
    """How often each sample was given to a rank, by the ledgers that a training keeps."""
    files = list((scene.results / "ledger").glob(f"{run_id}-*.npy"))
    return Counter(index for file in files for index in np.load(file).tolist())


def curve(scene: Scene, run_id: str) -> list[float]:
    """The loss of each step."""
    rows = [row for row in scene.rows("training.csv") if row["run_id"] == run_id]
    assert [int(row["step"]) for row in rows] == list(range(len(rows)))
    return [float(row["loss"]) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "framework", "sampler", "copies"),
    [
        ("torchrun", "ddp", "distributed", 2),
        ("torchrun", "accelerate", "ring", 1),
        ("accelerate", "ddp", "keyed", 1),
        ("notebook_launcher", "accelerate", "keyed", 1),
    ],
)
def test_a_launcher_of_two_ranks_trains_on_every_sample_once(
    launcher: str, framework: str, sampler: str, copies: int, scene: Scene
) -> None:
    flags = (*EPOCH, "--framework", framework, "--sampler", sampler)
    ended = two_ranks(launcher, scene, *flags).wait()
    assert ended.code == 0, ended.err
    printed = [line for line in ended.out.splitlines() if not line.startswith("Launching training on")]
    row = json.loads("\n".join(printed))
    assert (row["framework"], row["sampler"], row["world_size"], row["nnodes"]) == (framework, sampler, 2, 1)
    assert row["copies_low"] <= copies <= row["copies_high"], row["copies"]
    assert row["steps"] == len(curve(scene, row["run_id"])) == STEPS
    assert row["accuracy"] * FEW == pytest.approx(round(row["accuracy"] * FEW))
    assert row["accuracy"] > 0.5  # ten labels: a tenth is chance
    assert row["loss"] == pytest.approx(np.mean(curve(scene, row["run_id"])))
    assert delivered(scene, row["run_id"]) == Counter(range(MANY))
    assert scene.last_row()["run_id"] == row["run_id"]


@pytest.mark.slow
def test_wrong_usage_in_a_function_that_a_notebook_runs_ends_all_of_it(scene: Scene) -> None:
    ended = two_ranks("notebook_launcher", scene, "--dataset", f"{PICTURES}:absent").wait()
    assert ended.code == 1
    assert "the launcher returned" not in ended.err
    said = [line for line in ended.err.splitlines() if line.startswith("shardlab: ")]
    assert ["must define a callable of this name, but got 'absent'" in line for line in said] == [True]


def test_one_process_where_two_were_asked_for_is_told_how_to_train(scene: Scene) -> None:
    ended = scene.run("--dataset", f"{PICTURES}:few", command=(*ACCELERATE, "--cpu", *TRAIN))
    (said,) = [line for line in ended.err.splitlines() if line.startswith("shardlab: ")]
    assert "must start the 2 processes that it was asked for" in said
    assert "--num_processes 2 -m shardlab.train ..., or python -m shardlab.train --nproc 2" in said
    assert "non-zero exit status 2" in ended.err  # of our command, as its launcher saw it
    assert not scene.results.exists()


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("python /home/me/shardlab/bin/accelerate launch --cpu --num_processes 3 -m shardlab.train", 3),
        ("accelerate launch --num-processes=4 --config_file /shardlab/two.yaml -m shardlab.train", 4),
        ("python -m accelerate.commands.launch --num_processes 2 /env/bin/shardlab train", 2),
        ("accelerate launch --cpu -m shardlab.train --num-processes 4", None),
        ("accelerate launch --cpu /env/bin/shardlab train --num-processes 4", None),
    ],
)
def test_processes_asked_for_are_those_before_the_module(command: str, asked: int | None) -> None:
    assert processes_asked_for(command.split()) == asked


# Two hosts

CURVE = (
    "--dataset", f"{PICTURES}:many", "--eval-dataset", "none", "--dtype", "float64", "--no-dropout", "--tail", "drop",
    "--batch-size", "16", "--max-steps", "8", "--json", "--quiet",
)  # fmt: skip


def on(host: Host, scene: Scene, *flags: str) -> Run:
    """Start this host's half of the ranks, as one does on each host of a cluster."""
    command = (
        TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "host-0:29500", "--rdzv-id", "two-hosts", "--log-dir", str(scene.folder / "launcher"),
    )  # fmt: skip
    where = (*host.prefix, "env", "-C", str(scene.folder), f"TMPDIR={host.tmp}")
    return scene.start(*flags, command=(*where, *command, *TRAIN))


def as_one_row(runs: list[Run]) -> dict[str, Any]:
    """What rank 0 printed, on whichever host it was."""
    ended = [run.wait() for run in runs]
    assert [each.code for each in ended] == [0, 0], "\n".join(each.err for each in ended)
    (printed,) = [each.out for each in ended if each.out.strip()]
    row: dict[str, Any] = json.loads(printed)
    return row


@pytest.mark.slow
@pytest.mark.parametrize("path", [("ring",), ("keyed", "--store", "shared")], ids=["ring", "keyed"])
def test_two_hosts_hold_a_copy_each_and_learn_what_one_host_learns(
    path: tuple[str, ...], scene: Scene, tmp_path: Path
) -> None:
    flags = ("--sampler", *path, *CURVE)
    with two_hosts(tmp_path) as hosts:
        row = as_one_row([on(host, scene, *flags) for host in hosts])
        assert [host.left_behind for host in hosts] == [[], []]
    assert (row["nnodes"], row["world_size"], row["steps"]) == (2, 4, 8)
    nodes = [node for node in scene.rows("nodes.csv") if node["run_id"] == row["run_id"]]
    assert sorted(node["node"] for node in nodes) == ["host-0", "host-1"]
    for node in nodes:
        assert node["local_world_size"] == "2"
        assert float(node["copies_low"]) <= 1 <= float(node["copies_high"]), node["copies"]
    ranks = [rank for rank in scene.rows("ranks.csv") if rank["run_id"] == row["run_id"]]
    assert sorted(int(rank["rank"]) for rank in ranks) == [0, 1, 2, 3]
    assert Counter(rank["node"] for rank in ranks) == {"host-0": 2, "host-1": 2}
    given = delivered(scene, row["run_id"])
    assert (len(given), set(given.values())) == (8 * 4 * 16, {1})

    alone = scene.run("--nproc", "4", *flags, command=(sys.executable, *TRAIN))
    assert alone.code == 0, alone.err
    one_host = json.loads(alone.out)
    assert delivered(scene, one_host["run_id"]) == given
    losses = curve(scene, one_host["run_id"])
    assert losses == pytest.approx(curve(scene, row["run_id"]), abs=1e-9)
    assert losses[0] > losses[-1]


# The sample for Slurm


def test_the_sample_for_slurm_starts_ranks_on_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)
    given = _given_to_srun(tmp_path)
    place = given.index("shardlab.train")
    from torch.distributed.run import get_args_parser

    launcher = get_args_parser().parse_args([*given[given.index("torchrun") + 1 : place], "shardlab.train"])
    assert (launcher.nnodes, launcher.nproc_per_node, launcher.rdzv_backend) == ("2", "4", "c10d")
    assert (launcher.rdzv_endpoint, launcher.rdzv_id) == ("node-7:29500", "4711")
    assert (launcher.module, launcher.training_script) == (True, "shardlab.train")
    for name in JOIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert train.main([*given[place + 1 :], "--dry-run"]) == 0
    said = dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines() if "Note" not in line)
    assert (said["framework"], said["sampler"], said["dataset"]) == ("ddp", "ring", "mnist")


def _given_to_srun(folder: Path) -> list[str]:
    """The words after srun, as the shell makes them of the sample in a job of two nodes."""
    commands = {"srun": "printf '%q ' \"$@\"", "scontrol": "echo node-7; echo node-8"}
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    slurm = {
        "SLURM_NNODES": "2", "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node-[7-8]",
        "SLURM_CPUS_PER_TASK": "8", "SLURM_SUBMIT_DIR": str(folder),
    }  # fmt: skip
    env = {**os.environ, **slurm, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", str(SBATCH)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=True)
    return shlex.split(done.stdout)

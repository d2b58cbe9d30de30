"""Whatever ends a run: the right exit code, one message with the cause, nothing left, earlier rows kept.

The last two are checked by the ``scene`` of every test.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from faults.scene import GONE_WITHIN_S, PROFILE, SHM, TROUBLED, Scene, wait_for
from shardlab import shard

RANKS = ("--nproc", "2", "--start-method", "fork", "--quiet")
CALM = ("--dataset", f"{TROUBLED}:calm", "--compute", "50ms")  # a minute and a half, if nobody ends it
SMALL = ("--dataset", "synthetic:4MiB:1000")
WORKERS = {
    "none": ("--workers", "0"),
    "fork": ("--workers", "1", "--worker-start-method", "fork"),
    "forkserver": ("--workers", "1", "--worker-start-method", "forkserver"),
}
PLAIN = {("fork", "none"), ("spawn", "fork"), ("forkserver", "forkserver")}
START_METHODS = [
    pytest.param(start, workers, marks=() if (start, workers) in PLAIN else pytest.mark.slow)
    for start in ("spawn", "fork", "forkserver")
    for workers in WORKERS
]
EMPTY = ("--dataset", "synthetic:n=0:8")  # a run that ends at once, for what every run does first


def line_of(comment: str) -> str:
    """``file:line`` of the line of ``troubled.py`` that has this comment."""
    lines = Path(TROUBLED).read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, start=1) if line.endswith(f"# {comment}"))
    return f"{TROUBLED}:{number}"


def both_ranks_read(scene: Scene) -> None:
    scene.pid_of_rank(0)
    scene.pid_of_rank(1)


# A rank or the launcher is killed


def test_a_killed_rank_is_named_with_the_signal(scene: Scene) -> None:
    run = scene.start(*CALM, *RANKS)
    os.kill(scene.pid_of_rank(1), signal.SIGKILL)
    ended = run.wait()
    assert ended.code == 1
    assert ended.message.startswith("rank 1 failed: killed by SIGKILL")


def test_a_failed_run_leaves_a_row_with_the_reason(scene: Scene) -> None:
    run = scene.start(*CALM, *RANKS)
    os.kill(scene.pid_of_rank(0), signal.SIGKILL)
    run.wait()
    row = scene.last_row()
    assert row["status"] == "failed"
    assert row["reason"].startswith("run: rank 0 failed: killed by SIGKILL")
    assert row["copies"] == ""


@pytest.mark.parametrize(("start", "workers"), START_METHODS)
def test_nothing_outlives_a_killed_launcher(start: str, workers: str, scene: Scene) -> None:
    run = scene.start(*CALM, "--nproc", "2", "--start-method", start, "--quiet", *WORKERS[workers])
    both_ranks_read(scene)
    assert len(scene.processes()) >= 4  # launcher, monitor, two ranks
    run.process.kill()
    run.wait()
    scene.wait_until_nobody_lives()
    scene.run(*EMPTY, *RANKS)  # sweeps what a killed run could not remove


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_next_run_sweeps_what_is_left_when_all_are_killed_at_once(start: str, scene: Scene) -> None:
    run = scene.start(*CALM, "--nproc", "2", "--start-method", start, "--quiet")
    both_ranks_read(scene)
    for pid in scene.processes():
        os.kill(pid, signal.SIGKILL)
    run.wait()
    scene.wait_until_nobody_lives()
    assert list(scene.tmp.glob("shardlab-run-*"))
    assert bool(scene.left_behind().get(SHM)) == (start == "spawn")  # semaphores with names
    scene.run(*EMPTY, *RANKS)
    assert not list(scene.tmp.iterdir())


# A person or a scheduler ends the run


@pytest.mark.parametrize("workers", ["none", "fork"])
def test_ctrl_c_ends_the_run_with_130_and_one_sentence(workers: str, scene: Scene) -> None:
    run = scene.start(*CALM, *RANKS, *WORKERS[workers])
    both_ranks_read(scene)
    run.interrupt()
    ended = run.wait()
    assert ended.code == 130
    assert ended.message.startswith("interrupted")


def test_an_impatient_second_ctrl_c_changes_nothing(scene: Scene) -> None:
    run = scene.start(*CALM, *RANKS)
    both_ranks_read(scene)
    run.interrupt()
    time.sleep(0.1)  # a person's second key press
    run.interrupt()
    ended = run.wait()
    assert ended.code == 130
    assert ended.message.startswith("interrupted")


@pytest.mark.parametrize("after_s", [0.3, 1, 2, 4])
@pytest.mark.parametrize("start", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_ctrl_c_while_starting_up_leaves_no_traceback(start: str, after_s: float, scene: Scene) -> None:
    run = scene.start(*CALM, "--nproc", "2", "--start-method", start, "--quiet")
    time.sleep(after_s)  # whatever it does by then
    run.interrupt()
    ended = run.wait()
    assert ended.code == 130
    assert ended.message.startswith("interrupted")


def test_sigterm_ends_the_run_with_143_and_says_so(scene: Scene) -> None:
    run = scene.start(*CALM, *RANKS)
    both_ranks_read(scene)
    run.process.terminate()
    ended = run.wait()
    assert ended.code == 143
    assert "SIGTERM" in ended.message


def test_a_stopped_rank_does_not_delay_ctrl_c(scene: Scene) -> None:
    run = scene.start(*CALM, *RANKS)
    os.kill(scene.pid_of_rank(1), signal.SIGSTOP)
    asked = time.monotonic()
    run.interrupt()
    ended = run.wait()
    assert time.monotonic() - asked < 2 * GONE_WITHIN_S
    assert ended.code == 130
    assert ended.message.startswith("interrupted")


# A run that takes too long


@pytest.mark.slow
def test_the_deadline_ends_a_run_that_is_merely_slow(scene: Scene) -> None:
    ended = scene.run("--dataset", f"{TROUBLED}:calm", "--compute", "500ms", "--timeout", "3", *RANKS)
    assert ended.code == 1
    assert "did not end within --timeout 3 s" in ended.message


def test_the_deadline_ends_a_sample_that_never_comes(scene: Scene) -> None:
    ended = scene.run("--dataset", f"{TROUBLED}:hanging", "--timeout", "3", *RANKS)
    assert ended.code == 1
    assert "did not end within --timeout 3 s" in ended.message


def test_the_deadline_ends_a_factory_that_never_returns(scene: Scene) -> None:
    ended = scene.run("--dataset", f"{TROUBLED}:endless_factory", "--timeout", "3", *RANKS)
    assert ended.code == 1
    assert "endless_factory did not end within --timeout 3 s" in ended.message


# The user's own code fails


@pytest.mark.parametrize("workers", ["none", pytest.param("fork", marks=pytest.mark.slow), "forkserver"])
def test_an_exception_in_a_sample_is_told_with_rank_type_text_and_line(workers: str, scene: Scene) -> None:
    ranks = ("--nproc", "4", "--start-method", "fork", "--quiet")
    ended = scene.run("--dataset", f"{TROUBLED}:raising", *ranks, *WORKERS[workers])
    assert ended.code == 1
    assert "rank 2 failed: ValueError: this sample is rotten" in ended.message
    assert line_of("sample's line") in ended.message
    assert "rank" not in ended.message.replace("rank 2", "", 1)


@pytest.mark.parametrize("workers", ["none", pytest.param("fork", marks=pytest.mark.slow)])
def test_dispatching_a_string_is_refused_by_rank_0_with_the_field(workers: str, scene: Scene) -> None:
    flags = ("--dataset", f"{TROUBLED}:naming", "--sampler", "accelerate")
    ended = scene.run(*flags, *RANKS, *WORKERS[workers])
    assert ended.code == 2  # wrong usage, though it takes a rank to see it
    assert ended.message.startswith("rank 0")
    assert "sample['file'] of type str" in ended.message


@pytest.mark.parametrize("workers", ["none", pytest.param("fork", marks=pytest.mark.slow)])
def test_dispatching_lengths_that_differ_names_field_shapes_and_rank_0(workers: str, scene: Scene) -> None:
    flags = ("--dataset", f"{TROUBLED}:growing", "--sampler", "accelerate", "--no-shuffle")
    ended = scene.run(*flags, *RANKS, *WORKERS[workers])
    assert ended.code == 1
    assert ended.message.startswith("rank 0")
    assert "sample['tokens'] is float32 [1] at index 0 and float32 [2] at index 1" in ended.message


def test_dispatching_lengths_that_differ_between_batches_names_the_field_too(scene: Scene) -> None:
    flags = (
        "--dataset",
        f"{TROUBLED}:growing",
        "--sampler",
        "accelerate",
        "--no-shuffle",
        "--batch-size",
        "1",
    )
    ended = scene.run(*flags, *RANKS)
    assert ended.code == 1
    assert ended.message.startswith("rank 0")
    assert (
        "batch['tokens'] is float32 [1] at batch 0 of the round and float32 [2] at batch 1" in ended.message
    )


@pytest.mark.parametrize(
    ("name", "code", "parts"),
    [
        ("failing_factory", 1, ("OSError: the drive is not there", line_of("factory's line"))),
        ("forgetful_factory", 2, ("must return a dataset", "None", "an IterableDataset")),
        ("absent", 2, ("must define a callable", "absent", "calm")),
    ],
)
def test_a_factory_that_does_not_work_is_told(
    name: str, code: int, parts: tuple[str, ...], scene: Scene
) -> None:
    ended = scene.run("--dataset", f"{TROUBLED}:{name}", *RANKS)
    assert ended.code == code
    for part in (f"{TROUBLED}:{name}".rpartition(":")[0], *parts):
        assert part in ended.message


def test_a_syntax_error_is_told_with_file_and_line(scene: Scene) -> None:
    (scene.folder / "slip.py").write_text("\n\ndef data(:\n    pass\n")
    ended = scene.run("--dataset", "slip.py:data", *RANKS)
    assert ended.code == 1
    assert "SyntaxError" in ended.message
    assert "slip.py, line 3" in ended.message


# Very small datasets


@pytest.mark.parametrize("sampler", ["distributed", "keyed", "ring"])
def test_a_dataset_without_samples_is_wrong_usage(sampler: str, scene: Scene) -> None:
    dataset = ("--dataset", f"{TROUBLED}:only_0") if sampler == "ring" else EMPTY
    ended = scene.run(*dataset, *RANKS, "--sampler", sampler)
    assert ended.code == 2
    assert "at least one sample" in ended.message


# delivered and reads by rank, of 4 ranks with batches of 2, as torch 2.14 and accelerate 1.14 do it:
# distributed and sharded give each rank one sample, Accelerate's shards, keyed and ring full batches; one reader
# reads those of a ring. Accelerate's dispatcher reads each sample once, repeats its first round only once, and
# sends some ranks an empty batch where that is not enough.
FEW = [
    ("distributed", 3, [1, 1, 1, 1], [1, 1, 1, 1]),
    ("accelerate", 1, [1, 1, 0, 0], [1, 0, 0, 0]),
    ("accelerate", 3, [1, 1, 1, 1], [3, 0, 0, 0]),
    ("accelerate-shard", 3, [2, 2, 2, 2], [2, 2, 2, 2]),
    ("accelerate-split", 3, [2, 2, 2, 2], [2, 2, 2, 2]),
    ("sharded", 3, [1, 1, 1, 1], [1, 1, 1, 1]),
    ("keyed", 3, [2, 2, 2, 2], [2, 2, 2, 2]),
    ("ring", 3, [2, 2, 2, 2], [8, 0, 0, 0]),
]
PLAIN_FEW = (("accelerate", 1), ("ring", 3))


@pytest.mark.parametrize(
    ("sampler", "samples", "delivered", "reads"),
    [pytest.param(*few, marks=() if few[:2] in PLAIN_FEW else pytest.mark.slow) for few in FEW],
)
def test_fewer_samples_than_ranks_are_repeated_by_the_pad_tail_and_all_arrive(
    sampler: str, samples: int, delivered: list[int], reads: list[int], scene: Scene
) -> None:
    dataset = f"synthetic:n={samples}:8"
    if sampler == "sharded":
        assert shard.main([dataset, str(scene.folder / "shards")]) == 0
        dataset = str(scene.folder / "shards")
    ranks = ("--nproc", "4", "--start-method", "fork", "--quiet", "--batch-size", "2", "--json")
    ended = scene.run("--dataset", dataset, "--sampler", sampler, *ranks)
    assert ended.code == 0, ended.err
    row = json.loads(ended.out)
    assert [rank["delivered"] for rank in row["ranks"]] == delivered
    assert [rank["reads"] for rank in row["ranks"]] == reads
    assert (row["distinct"], row["missing"]) == (samples, 0)
    assert row["duplicates"] == sum(delivered) - samples


@pytest.mark.parametrize("sampler", [pytest.param("keyed", marks=pytest.mark.slow), "ring"])
@pytest.mark.parametrize("samples", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_few_samples_of_python_objects_all_arrive(sampler: str, samples: int, scene: Scene) -> None:
    ranks = ("--nproc", "4", "--start-method", "fork", "--quiet", "--batch-size", "2", "--json")
    dataset = f"{TROUBLED}:only_{samples}"
    ended = scene.run("--dataset", dataset, "--sampler", sampler, "--tail", "keep", *ranks)
    assert ended.code == 0, ended.err
    row = json.loads(ended.out)
    assert [rank["delivered"] for rank in row["ranks"]] == ([1, 0, 0, 0] if samples == 1 else [2, 1, 0, 0])
    assert (row["distinct"], row["missing"], row["duplicates"]) == (samples, 0, 0)


# Little shared memory


@pytest.mark.parametrize("flags", [("ring", "--workers", "2"), ("keyed", "--store", "shared")], ids=["ring", "keyed"])
def test_a_dataset_four_times_as_large_as_dev_shm_is_shared(flags: tuple[str, ...], scene: Scene) -> None:
    scene.mounts.mount("tmpfs", Path(SHM), "-o", "size=16m")
    ended = scene.run("--dataset", "synthetic:64MiB:784", "--nproc", "2", "--quiet", "--sampler", *flags)
    assert ended.code == 0, ended.err
    row = scene.last_row()
    assert row["missing"] == "0"
    assert float(row["copies"]) < 1.5  # some MiB of noise a process, and 64 of data


# The results cannot be written, or nobody reads them


def test_a_disk_that_fills_up_during_the_run_takes_the_row_but_not_the_table(scene: Scene) -> None:
    results = scene.folder / "small"
    scene.mounts.mount("tmpfs", results, "-o", "size=256k")
    run = scene.start(*SMALL, *RANKS, "--results", str(results))
    ranks = scene.mounts.sees(results) / "ranks.csv"
    wait_for(lambda: ranks.exists() and len(ranks.read_text().splitlines()) == 3, "the rows of both ranks")
    scene.mounts.fill(results)
    ended = run.wait()
    assert ended.code == 1
    assert "No space left on device; earlier rows are kept" in ended.message
    assert "All 4,194 samples arrived, none twice." in ended.out
    assert len(ranks.read_text().splitlines()) == 3


def test_a_full_disk_is_found_before_anything_runs(scene: Scene) -> None:
    results = scene.folder / "small"
    scene.mounts.mount("tmpfs", results, "-o", "size=64k")
    scene.mounts.fill(results)
    ended = scene.run(*CALM, *RANKS, "--results", str(results))
    assert ended.code == 2
    assert "No space left on device" in ended.message
    assert "Cure: free space" in ended.message
    assert not list(scene.calls.iterdir())


def test_a_read_only_folder_is_found_before_anything_runs(scene: Scene) -> None:
    results = scene.folder / "fixed"
    scene.mounts.mount("tmpfs", results, "-o", "ro")
    ended = scene.run(*CALM, *RANKS, "--results", str(results))
    assert ended.code == 2
    assert "Read-only file system" in ended.message
    assert "Cure: " in ended.message


def test_a_file_is_no_folder_for_results(scene: Scene) -> None:
    results = scene.folder / "file"
    results.write_text("mine")
    ended = scene.run(*CALM, *RANKS, "--results", str(results))
    assert ended.code == 2
    assert "--results must name a folder" in ended.message
    assert results.read_text() == "mine"


def test_a_run_survives_its_monitor_and_says_why_copies_are_not_known(scene: Scene) -> None:
    run = scene.start("--dataset", f"{TROUBLED}:calm", "--compute", "20ms", *RANKS, "--json")
    both_ranks_read(scene)
    (monitor,) = [pid for pid, command in scene.processes().items() if "shardlab.measure.monitor" in command]
    os.kill(monitor, signal.SIGKILL)
    ended = run.wait()
    assert ended.code == 0, ended.err
    row = json.loads(ended.out)
    assert row["copies"] is None
    assert "copies: the monitor" in row["reason"]
    assert (row["delivered"], row["distinct"]) == (4000, 4000)


@pytest.mark.parametrize("flag", [pytest.param("--json", marks=pytest.mark.slow), "--no-json"])
def test_a_reader_that_leaves_early_gets_no_traceback(flag: str, scene: Scene) -> None:
    shell = ("sh", "-c", '"$@" | true', "sh", *PROFILE)
    ended = scene.run(*SMALL, *RANKS, flag, command=shell)
    assert ended.code == 0
    assert "Traceback" not in ended.err
    assert "Broken pipe" not in ended.err
    assert [row["status"] for row in scene.rows("runs.csv")] == ["ok", "ok"]

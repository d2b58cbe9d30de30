"""``shardlab.watch`` as a user starts it: exit codes, what it says, what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "experiments"))

import memory_limit
from command import SOURCE
from shardlab import csvlog

JOBS = Path(__file__).parent / "jobs"
TRUTHS = Path(__file__).parent / "truths.py"
MIB = 1 << 20
ENVIRONMENT = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another process's pages are read on Linux alone")


def watch(*argv: str | int, deadline_s: float = 120) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object, stderr."""
    command = [sys.executable, "-m", "shardlab.watch", "--json", "--results", "none", *map(str, argv)]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=deadline_s, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.mark.parametrize(
    ("does", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_exit_code_of_the_job_is_passed_on(does: str, code: int):
    found, told, _ = watch("--", "sh", "-c", does)
    assert found == told["exit_code"] == code


def test_what_cannot_be_started_or_watched_is_said():
    assert watch("--", "no-such-command-here")[0] == 127
    assert watch("--", "/")[0] == 126
    code, _, said = watch()
    assert code == 2
    assert "either a command after -- or --pid" in said
    gone = subprocess.Popen(["true"])
    gone.wait()
    code, _, said = watch("--pid", gone.pid)
    assert code == 2
    assert "--pid must be of a process that runs" in said


def test_a_job_that_ends_before_a_census_has_none_and_says_why():
    code, told, said = watch("--", "sh", "-c", "echo from the job")
    assert code == 0
    assert told["duplicate_bytes"] is None
    assert "ended before its memory had settled" in told["reasons"]["duplicate_bytes"]
    assert "from the job" in said  # stdout is the object's


FOUR = """
import sys, time
from multiprocessing import get_context
import numpy as np

def hold(kept=None):
    kept = np.random.default_rng(0).integers(0, 256, 32 << 20, np.uint8)
    time.sleep(float(sys.argv[1]))

if __name__ == "__main__":
    ranks = [get_context("spawn").Process(target=hold) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
"""


@pytest.fixture
def four(tmp_path: Path) -> str:
    """A script of four processes, each with the same 32 MiB."""
    script = tmp_path / "four.py"
    script.write_text(FOUR)
    return str(script)


def test_four_copies_are_found_once_memory_has_settled(four: str):
    code, told, said = watch("--dataset-bytes", "32MiB", "--", sys.executable, four, 8)
    assert code == 0
    assert told["copies"] == pytest.approx(4, abs=0.1)
    assert told["copies_certainty"] == "holds"
    assert told["duplicate_bytes"] == pytest.approx(96 * MIB, rel=0.05)
    assert told["bytes_by_holders"]["4"] == pytest.approx(32 * MIB, rel=0.05)
    (cause,) = told["causes"]
    assert cause["name"] == "ranks-hold-copies"
    assert len(cause["pids"]) == 4
    assert told["unreadable"] == 0
    assert "ranks 0-3 hold the same 32" in said
    assert "kill -USR1" in said


def test_a_running_job_is_watched_by_its_pid_and_goes_on(four: str, tmp_path: Path):
    with subprocess.Popen([sys.executable, four, "60"], start_new_session=True) as job:
        results = tmp_path / "results"
        command = [sys.executable, "-m", "shardlab.watch", "--json", "--results", str(results), "--pid", str(job.pid)]
        watching = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # "&" of a shell ignores it
        )  # fmt: skip
        assert watching.stderr is not None and watching.stdout is not None
        for line in watching.stderr:
            if "Census of" in line:
                break
        os.kill(watching.pid, signal.SIGINT)
        told = json.loads(watching.communicate(timeout=30)[0])
        assert watching.returncode == 0
        assert job.poll() is None
        os.killpg(job.pid, signal.SIGKILL)
    assert told["duplicate_bytes"] == pytest.approx(96 * MIB, rel=0.05)
    rows = csvlog.read_rows(results / "memory.csv")
    assert {row["role"] for row in rows} >= {"rank", "tracker"}
    assert {row["rank"] for row in rows if row["role"] == "rank"} == {"0", "1", "2", "3"}


def test_a_census_comes_by_signal_and_at_a_time(four: str):
    command = [sys.executable, "-m", "shardlab.watch", "--results", "none", "--census", "never"]
    with subprocess.Popen(
        [*command, "--census-at", "1", "--", sys.executable, four, "60"], env=ENVIRONMENT, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as watching:  # fmt: skip
        assert watching.stderr is not None
        for number in range(2):
            for line in watching.stderr:
                if line.startswith("Census of"):
                    break
            if not number:
                os.kill(watching.pid, signal.SIGUSR1)
        os.killpg(watching.pid, signal.SIGTERM)
        assert watching.wait(30) == 143


def test_a_signal_ends_the_job_and_the_watch_says_what_it_found(tmp_path: Path):
    command = [sys.executable, "-m", "shardlab.watch", "--json", "--results", "none", "--", "sleep", "60"]
    watching = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stderr is not None
    watching.stderr.readline()
    time.sleep(0.3)
    os.kill(watching.pid, signal.SIGTERM)
    told = json.loads(watching.communicate(timeout=30)[0])
    assert watching.returncode == told["exit_code"] == 143


GROWS = """
import time
time.sleep(4)
held = []
for _ in range(100):
    held.append(bytearray(b"a" * (10 << 20)))
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_job_that_its_memory_limit_kills_is_told_of_with_the_limit():
    try:
        with memory_limit.group(200 * MIB) as group:
            code, told, said = watch("--", *group.prefix, sys.executable, "-c", GROWS)
    except memory_limit.NoGroup as error:
        pytest.skip(str(error))
    assert code == told["exit_code"] == 137
    assert told["out_of_memory_kills"] == 1
    assert set(causes_of(told)) == {"near-limit", "out-of-memory-kill"}
    assert "of 200.0 MiB" in said


# Scripts as users write them


def torchrun(ranks: int, script: str, *flags: str | int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
            str(JOBS / script), *map(str, flags)]  # fmt: skip


def causes_of(told: dict[str, Any]) -> dict[str, str]:
    return {cause["name"]: cause["certainty"] for cause in told["causes"]}


COPYING = {"ranks-hold-copies", "workers-copied-by-reference-counting", "workers-hold-pickled-copies"}


def watched_until(said: str, folder: Path, *flags: str, job: list[str]) -> tuple[dict[str, Any], str]:
    """Let the job run until the watch has said this, then end it; the object and all that was said."""
    end = folder / "end"
    command = [sys.executable, "-m", "shardlab.watch", "--json", "--results", "none", *flags, "--", *job]
    watching = subprocess.Popen(
        [*command, "--until", str(end)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watching.stderr is not None
    lines = []
    timer = threading.Timer(90, end.touch)
    timer.start()
    for line in watching.stderr:
        lines.append(line)
        if re.search(said, line):
            break
    timer.cancel()
    end.touch()
    out, rest = watching.communicate(timeout=120)
    told = "".join(lines) + rest
    # gloo's threads may abort a rank that is through: it has nothing to do with the watch
    assert watching.returncode == 0 or "terminate called without an active exception" in told, told
    return json.loads(out), told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "copies", "cause"),
    [
        ("built", 4, "ranks-hold-copies"),
        ("dispatched", 4, "ranks-hold-copies"),
        ("different", 1, ""),
        ("mapped", 1, ""),
    ],
)
def test_arrays_of_ranks(how: str, copies: float, cause: str, tmp_path: Path):
    flags: list[str | int] = [how, "--mb", 64]
    if how == "mapped":
        np.save(tmp_path / "array.npy", np.random.default_rng(0).random((64 * 256, 1024), dtype=np.float32))
        flags += ["--file", str(tmp_path / "array.npy")]
    job = torchrun(4, "arrays.py", *flags)
    told, said = watched_until("^Census of", tmp_path, "--dataset-bytes", "64MiB", job=job)
    assert told["copies"] == pytest.approx(copies, abs=0.1), said
    assert {name for name in causes_of(told) if name in COPYING} == ({cause} if cause else set())
    assert ("page-cache" in causes_of(told)) == (how == "mapped")


@pytest.mark.slow
def test_a_list_that_forked_workers_read_is_copied_by_reference_counting(tmp_path: Path):
    job = torchrun(1, "ddp_list.py", "--workers", 4)
    until = r"^(Likely: )?workers-copied"
    told, said = watched_until(until, tmp_path, "--dataset-bytes", "50MiB", job=job)
    assert {name for name in causes_of(told) if name in COPYING} == {"workers-copied-by-reference-counting"}, said
    assert told["copies"] == pytest.approx(1 + 4 * 0.9, rel=0.2)


@pytest.mark.slow
def test_a_list_in_each_rank_is_likely_a_copy_in_each(tmp_path: Path):
    job = torchrun(4, "ddp_list.py", "--workers", 0, "--strings", 1_200_000)
    told, said = watched_until("^Census of", tmp_path, "--dataset-bytes", "200MiB", job=job)
    assert {n: c for n, c in causes_of(told).items() if n in COPYING} == {"ranks-hold-copies": "likely"}, said
    assert told["copies"] == pytest.approx(4, rel=0.25)


@pytest.mark.slow
def test_lists_inherited_by_forked_ranks():
    code, told, said = watch("--", sys.executable, str(JOBS / "forked_lists.py"))
    assert code == 0
    assert {name for name in causes_of(told) if name in COPYING} == {"workers-copied-by-reference-counting"}, said


@pytest.mark.slow
def test_a_cache_of_images_is_pickled_to_each_worker_of_a_forkserver(tmp_path: Path):
    job = torchrun(2, "image_cache.py")
    until = r"likely holds [4-7]\."  # the workers are through with loading then
    told, said = watched_until(until, tmp_path, "--dataset-bytes", "115MiB", job=job)
    assert "workers-hold-pickled-copies" in causes_of(told), said
    assert told["copies"] == pytest.approx(6, rel=0.25), said
    assert told["copies_certainty"] == "likely"


@pytest.mark.slow
def test_an_array_in_each_rank_of_a_trainer_script(tmp_path: Path):
    job = torchrun(2, "trainer.py", "--out", tmp_path / "out")
    told, said = watched_until("^Census of", tmp_path, "--dataset-bytes", "64MiB", job=job)
    assert {n: c for n, c in causes_of(told).items() if n in COPYING} == {"ranks-hold-copies": "holds"}, said
    assert told["copies"] == pytest.approx(2, abs=0.1), said


@pytest.mark.slow
def test_batches_on_their_way_are_no_copies_of_the_array_that_they_are_read_from(tmp_path: Path):
    job = [sys.executable, str(JOBS / "big_batches.py")]
    told, said = watched_until("^in-flight-batches", tmp_path, "--dataset-bytes", "32MiB", job=job)
    assert not {name for name in causes_of(told) if name in COPYING}, said
    assert told["copies"] == pytest.approx(1, abs=0.1), said
    (flying,) = (cause["bytes"] for cause in told["causes"] if cause["name"] == "in-flight-batches")
    # a batch has 8 MiB; of each of 4 workers 4 are ahead, and one may be with the job
    assert 64 * MIB <= flying <= 17 * 8 * MIB, said


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_start_workers_are_nested_loaders(method: str, tmp_path: Path):
    job = [sys.executable, str(JOBS / "nested_loaders.py"), "--method", method]
    told, said = watched_until("^nested-loaders", tmp_path, job=job)
    (nested,) = (cause for cause in told["causes"] if cause["name"] == "nested-loaders")
    assert nested["certainty"] == "holds"
    assert len(nested["pids"]) == 2, said
    assert "2 workers of rank 0 started 2 workers of their own: 4 in all" in nested["evidence"]
    assert not {name for name in causes_of(told) if name in COPYING}, said


@pytest.mark.slow
def test_a_list_of_dicts_that_forked_workers_read_is_likely_copied_by_reference_counting(tmp_path: Path):
    job = [sys.executable, str(JOBS / "dicts.py")]
    told, said = watched_until("^(Likely: )?workers-copied", tmp_path, job=job)
    assert {name for name in causes_of(told) if name in COPYING} == {"workers-copied-by-reference-counting"}, said


@pytest.mark.slow
def test_what_is_left_of_a_list_that_was_stacked_is_no_copy(tmp_path: Path):
    job = torchrun(4, "stacked.py")
    told, said = watched_until("^Census of", tmp_path, "--dataset-bytes", "128MiB", job=job)
    assert {n: c for n, c in causes_of(told).items() if n in COPYING} == {"ranks-hold-copies": "holds"}, said
    assert told["copies"] == pytest.approx(4, abs=0.1), said

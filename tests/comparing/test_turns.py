"""Each configuration once in every turn, wherever a comparison was interrupted; on one machine."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_by_hand import run_row

from command import SOURCE, run
from shardlab import csvlog
from shardlab.comparing import turns
from shardlab.comparing.matrix import CompareConfig, matrix
from shardlab.comparing.turns import Comparison, refuse_other_machines
from shardlab.config import OutputConfig, RunConfig
from shardlab.errors import UsageError
from shardlab.world import without_rendezvous

OUTPUT = OutputConfig()
CONFIGS = matrix(CompareConfig("distributed,keyed,ring"), RunConfig(dataset="synthetic:1MiB:4")).configs


class Remembered(Comparison):
    """A comparison whose rows are given."""

    there: list[dict[str, str]]

    def rows(self) -> list[Any]:
        return self.there


def remembered(*there: dict[str, str], repeats: int = 3) -> Remembered:
    comparison = Remembered("c", CONFIGS, repeats, OutputConfig())
    comparison.there = list(there)
    return comparison


def test_turns_begin_with_another_one_each_time():
    order = [(config.sampler, turn) for config, turn in remembered().to_do()]
    assert order == [
        ("distributed", 0), ("keyed", 0), ("ring", 0),
        ("keyed", 1), ("ring", 1), ("distributed", 1),
        ("ring", 2), ("distributed", 2), ("keyed", 2),
    ]  # fmt: skip


@given(done=st.integers(0, 12), repeats=st.integers(1, 4))
def test_what_was_done_and_what_is_to_come_are_all_runs_once(done: int, repeats: int):
    every = list(remembered(repeats=repeats).to_do())
    rows = [run_row(c.sampler, c.store, 1.0, repeat=turn) for c, turn in every[:done]]
    assert list(remembered(*rows, repeats=repeats).to_do()) == every[done:]


def test_what_failed_is_not_tried_again_and_the_others_go_on():
    failed = run_row("keyed", "shared", repeat=0, status="failed")
    left = [config.sampler for config, _ in remembered(failed, repeats=2).to_do()]
    assert sorted(left) == ["distributed", "distributed", "ring", "ring"]


def test_runs_of_two_machines_are_refused_by_what_differs():
    here, there = run_row("keyed", "shared"), run_row("ring", "shared", cores=64)
    refuse_other_machines([here, here])
    with pytest.raises(UsageError, match=r"cores 2 and 64.*--across-machines"):
        refuse_other_machines([here, there])


def test_other_flags_software_or_code_are_another_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = tmp_path / "mine.py"
    code.write_text("def load(): ...")
    config = RunConfig(dataset=f"{code}:load")
    first = turns.fingerprint([config], 2, OUTPUT)
    assert turns.fingerprint([config], 2, OUTPUT) == first
    assert turns.fingerprint([config], 3, OUTPUT) != first
    assert turns.fingerprint([RunConfig(dataset=f"{code}:load", seed=1)], 2, OUTPUT) != first
    assert turns.fingerprint([config], 2, OutputConfig(control=False)) != first
    code.write_text("def load(): pass")
    assert turns.fingerprint([config], 2, OUTPUT) != first


def test_one_comparison_at_a_time_runs_in_a_folder(tmp_path: Path):
    with (
        turns.alone_in(str(tmp_path)),
        pytest.raises(UsageError, match="one comparison at a time"),
        turns.alone_in(str(tmp_path)),
    ):
        pass
    with turns.alone_in(str(tmp_path)):
        pass


def test_what_fails_meanwhile_is_not_taken_for_another_comparison(tmp_path: Path):
    with pytest.raises(BlockingIOError), turns.alone_in(str(tmp_path)):
        raise BlockingIOError


FLAGS = (
    "--nproc", 2, "--dataset", "synthetic:n=203:16", "--samplers", "distributed,keyed,ring", "--repeats", 2,
    "--start-method", "forkserver", "--no-control", "--batch-size", 8,
)  # fmt: skip
COUNTERS = ("delivered", "distinct", "duplicates", "missing", "steps_min", "steps_max", "order_hash", "status")


def counters(results: Path) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    """Of each configuration and turn, what was counted in each of its runs."""
    found: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for row in csvlog.read_rows(results / "runs.csv"):
        if row["status"] != "interrupted":
            key = (*turns.key_of_row(row), row["repeat"])
            found.setdefault(key, []).append(tuple(row[name] for name in COUNTERS))
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    """What a comparison counts that nobody disturbs."""
    results = tmp_path_factory.mktemp("whole")
    ended = run("shardlab.compare", *FLAGS, results=results, deadline_s=240)
    assert ended.code == 0, ended.stderr
    return counters(results)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_at_a_random_moment_and_given_again_it_has_run_each_once(
    number: int, uninterrupted: Any, tmp_path: Path
):
    broken = tmp_path / "broken"
    command = [sys.executable, "-m", "shardlab.compare", "--quiet", "--results", str(broken), *map(str, FLAGS)]
    process = subprocess.Popen(
        command, env={**without_rendezvous(os.environ), "PYTHONPATH": SOURCE}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell ignores it for what it runs with &
    )  # fmt: skip
    moment, deadline = random.Random(number), time.monotonic() + 120
    rows = moment.randint(1, 4)  # a run takes a second at the least, so that of six one is still to come
    while len(counters(broken)) < rows and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(moment.uniform(0.0, 1.0))
    process.send_signal(number)
    process.wait(60)
    before = len(counters(broken))
    ended = run("shardlab.compare", *FLAGS, results=broken, deadline_s=240)
    assert ended.code == 0, ended.stderr
    assert 1 <= before < 6
    assert f"{before} of 6 runs are there" in ended.said
    found = counters(broken)
    assert {key: len(runs) for key, runs in found.items()} == dict.fromkeys(uninterrupted, 1)
    assert found == uninterrupted
    assert len({row["comparison"] for row in csvlog.read_rows(broken / "runs.csv")}) == 1

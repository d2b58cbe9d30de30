"""The command's manners, and one real prediction: three ranks foretold from one and two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command import code_of
from shardlab import predict as command
from shardlab.predicting.peaks import peaks_of, samples_of
from shardlab.predicting.question import Limit, Question
from shardlab.predicting.room import built_in_bytes
from shardlab.world import JOIN_VARIABLES, without_rendezvous

GIB = 1 << 30


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not a rank of anything, in a folder of its own."""
    for name in JOIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ("--limit 0", ["--limit must be more than 0 bytes", "'0'"]),
        ("--limit abc", ["--limit must be a number of bytes", "'abc'", "256MiB"]),
        ("--dataset-bytes 0GiB", ["--dataset-bytes must be more than 0 bytes", "'0GiB'"]),
        ("--dataset-bytes much", ["--dataset-bytes must be a number of bytes", "'much'"]),
        ("--nnodes 0", ["--nnodes must be at least 1", "0"]),
        ("--nproc 0", ["--nproc must be at least 1", "0"]),
        ("--store nonsense", ["--store must name a store", "'nonsense'"]),
        ("--dataset nonsense", ["--dataset must name a dataset", "'nonsense'"]),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_was_wrong(
    flags: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(command.main, *flags.split(), "--dry-run") == 2
    printed = capsys.readouterr()
    said = " ".join(printed.err.split())
    assert not [part for part in parts if part not in said], said
    assert printed.out == ""


def test_a_dry_run_names_the_small_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(command.main, "--nproc", "8", "--limit", "512GiB", "--dry-run") == 0
    first, *runs = capsys.readouterr().out.splitlines()
    assert "512 GiB" in first
    assert len(runs) == 3
    assert all(run.startswith("shardlab.profile") for run in runs)
    assert "--nproc 3" in runs[-1]


def test_a_limit_is_read_as_people_write_it() -> None:
    assert Question(limit="512GiB").memory() == Limit(512 * GIB, None)
    assert Question(dataset_bytes="1.5GB").data_bytes == 1_500_000_000
    assert Question().data_bytes is None


def test_without_a_limit_it_is_what_others_have_left() -> None:
    nbytes, built_in = Question().memory()
    assert built_in == built_in_bytes()
    assert 0 < nbytes <= built_in


def test_the_peaks_of_a_run_are_read_from_its_rows(tmp_path: Path) -> None:
    """Two ranks; the second is known as one when it has opened its data path. Read twice at 0.4 s, held then.

    Between 0.2 and 0.3 s the second held 200 bytes more for a moment, while it still built.
    """
    (tmp_path / "memory.csv").write_text(
        "run_id,t_s,pid,role,pss_bytes,spike_bytes\n"
        "a,0.1,1,rank,100,0\na,0.1,2,other,90,\n"
        "a,0.2,1,rank,300,0\na,0.2,2,other,100,0\nb,0.2,9,rank,9999,0\n"
        "a,0.3,1,rank,150,0\na,0.3,2,rank,160,200\na,0.35,1,rank,,\n"
        "a,0.4,1,rank,120,0\na,0.4,2,rank,120,0\na,0.4,1,rank,110,30\na,0.4,2,rank,110,0\n"
        "a,0.5,1,rank,800,0\na,0.5,2,rank,800,0\n"
    )
    samples = samples_of(tmp_path / "memory.csv", "a")
    assert [sample.pss_bytes for sample in samples] == [190, 400, 310, 220, 1600]
    assert peaks_of(samples, nproc=2, held_s=0.4) == (510, 310)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_ranks_are_foretold_from_fewer(tmp_path: Path) -> None:
    """The small runs of a job of two ranks know nothing of three; the profile of three says what they take."""
    flags = ["--dataset", "synthetic:192MiB", "--json", "--quiet", "--results", str(tmp_path)]
    script = (
        "import json, sys\n"
        "from dataclasses import replace\n"
        "from shardlab.bar import Bar\n"
        "from shardlab.config import OutputConfig, RunConfig\n"
        "from shardlab.plan import resolve\n"
        "from shardlab.predicting.small_runs import gathered\n"
        "if __name__ == '__main__':\n"
        "    job = resolve(RunConfig(dataset='synthetic:192MiB', nproc=2)).config\n"
        "    with Bar(2, quiet=True) as bar:\n"
        "        found = gathered(job, OutputConfig(results='small', pss_timeline=True), bar, None)\n"
        "    print(json.dumps(found.forecast(replace(job, nproc=3), 1).needs))\n"
    )
    (tmp_path / "foretell.py").write_text(script)
    value, low, high = json.loads(run_python(["foretell.py"], tmp_path))
    taken = json.loads(run_python(
        ["-m", "shardlab.profile", "--nproc", "3", "--pss-timeline", "--no-control", *flags], tmp_path
    ))  # fmt: skip
    assert low < value < high
    assert value == pytest.approx(taken["pss_peak_bytes"], rel=0.1)


def run_python(words: list[str], folder: Path) -> str:
    """What a fresh interpreter prints."""
    environment = {**without_rendezvous(os.environ), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout

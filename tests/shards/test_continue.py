"""A write that was killed goes on where it was, and ends as if it had not been."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from shardlab.dataset._arrays import ArrayDataset
from shardlab.errors import UsageError
from shardlab.shard import main
from shardlab.shards.reader import ShardedArrays
from shardlab.shards.writer import WRITING, write

SAMPLES = 40


class Source:
    """Forty samples, which notes what it is asked for and kills the process at one of them."""

    def __init__(self, asked: Path, killed_at: int) -> None:
        self.asked, self.killed_at = asked, killed_at

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        with self.asked.open("a") as file:
            print(index, file=file)
        if index == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": torch.full((index % 3, 2), index), "name": f"sample {index}", "label": index}


def write_source(folder: Path, asked: Path, killed_at: int) -> None:
    write(Source(asked, killed_at), folder, samples_per_shard=3, source="the source")


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def written(folder: Path, killed_at: int = -1) -> list[int]:
    """Run a writer in a process of its own; which samples it asked for."""
    asked = folder.with_name(f"{folder.name}-asked")
    asked.unlink(missing_ok=True)
    # forked: a new interpreter would take seconds to load torch
    context = multiprocessing.get_context("fork")
    process = context.Process(target=write_source, args=(folder, asked, killed_at))
    process.start()
    process.join(60)
    assert process.exitcode == (0 if killed_at < 0 else -signal.SIGKILL)
    return [int(line) for line in asked.read_text().split()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    written(folder)
    return folder


@pytest.mark.parametrize("killed_at", [1, 3, 20, 39])
def test_a_killed_write_goes_on_after_its_last_whole_shard(
    tmp_path: Path, whole: Path, killed_at: int
) -> None:
    written(tmp_path, killed_at)
    with pytest.raises(UsageError, match=r"must have a manifest\.json"):
        ShardedArrays(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    asked = written(tmp_path)
    kept = killed_at // 3 * 3
    assert asked == [0, *range(kept or 1, SAMPLES)]
    assert content(tmp_path) == content(whole)
    assert all((tmp_path / name).stat().st_mtime_ns == time_ns for name, time_ns in before.items())


def test_a_write_that_is_killed_at_each_turn_gets_done(tmp_path: Path, whole: Path) -> None:
    for killed_at in (7, 8, 14, 33):
        written(tmp_path, killed_at)
    assert written(tmp_path) == [0, *range(33, SAMPLES)]
    assert content(tmp_path) == content(whole)


def test_what_was_written_of_a_shard_without_a_name_yet_is_removed(tmp_path: Path, whole: Path) -> None:
    written(tmp_path, 20)
    (tmp_path / ".tmpfK2H5x").write_bytes(b"a part")
    written(tmp_path)
    assert content(tmp_path) == content(whole)


def kill_at_random(command: list[str], delay_s: float) -> bool:
    """Start, kill after a while; whether it was still running then."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(delay_s)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_killed_at_random_moments_it_still_ends_as_an_uninterrupted_write_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shardlab.shard", "synthetic:n=3000:64"]
    options = ["--samples-per-shard", "7", "--quiet"]
    started = time.monotonic()
    subprocess.run([*command, str(tmp_path / "whole"), *options], check=True)
    length_s = time.monotonic() - started
    rng, kills = random.Random(0), 0
    for number in range(8):
        out = tmp_path / f"killed-{number}"
        while kill_at_random([*command, str(out), *options], rng.uniform(0.4, 1.05) * length_s):
            kills += 1
            if not (out / WRITING).exists() and (out / "manifest.json").exists():
                break
            assert not (out / "manifest.json").exists() or len(ShardedArrays(out)) == 3000
        assert content(out) == content(tmp_path / "whole")
    assert kills >= 4


def test_a_shard_cut_off_or_damaged_since_is_written_again(tmp_path: Path, whole: Path) -> None:
    written(tmp_path, 20)
    path = tmp_path / "shard-00002.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert written(tmp_path) == [0, *range(6, SAMPLES)]
    assert content(tmp_path) == content(whole)


def test_a_journal_whose_last_line_was_cut_off_loses_that_shard_alone(tmp_path: Path, whole: Path) -> None:
    written(tmp_path, 20)
    os.truncate(tmp_path / WRITING, (tmp_path / WRITING).stat().st_size - 5)
    assert written(tmp_path) == [0, *range(15, SAMPLES)]
    assert content(tmp_path) == content(whole)


@pytest.mark.parametrize("journal", [b"", b"\n", b"{}\n", b"\xff\xfe\n", b"[1]\n" * 3])
def test_a_journal_that_says_nothing_begins_anew(tmp_path: Path, whole: Path, journal: bytes) -> None:
    written(tmp_path, 20)
    (tmp_path / WRITING).write_bytes(journal)
    assert written(tmp_path) == list(range(SAMPLES))
    assert content(tmp_path) == content(whole)


def test_a_writer_killed_after_the_manifest_is_only_tidied_up_after(tmp_path: Path, whole: Path) -> None:
    written(tmp_path, 39)
    notes = (tmp_path / WRITING).read_bytes()
    written(tmp_path)
    (tmp_path / WRITING).write_bytes(notes)
    assert len(ShardedArrays(tmp_path)) == SAMPLES  # whole already
    written(tmp_path)
    assert content(tmp_path) == content(whole)


ROWS = torch.arange(20.0).reshape(10, 2)


def killed_with(folder: Path) -> None:
    code = (
        "import os, signal, sys, torch\n"
        "from shardlab.shard import main\n"
        "import shardlab.shards.writer as writer\n"
        "put = writer._put\n"
        "def put_or_die(path, write_to):\n"
        "    if '00002' in path.name: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return put(path, write_to)\n"
        "writer._put = put_or_die\n"
        "main(['synthetic:n=23:7', sys.argv[1], '--samples-per-shard', '5', '--seed', '3'])"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder)]).returncode == -signal.SIGKILL


OTHERS = [
    (["synthetic:n=23:7", "OUT", "--samples-per-shard", "5"], r"seed 0, begun with 3"),
    (["synthetic:n=24:7", "OUT", "--samples-per-shard", "5", "--seed", "3"], "source 'synthetic:n=24:7'"),
    (["synthetic:n=23:7", "OUT", "--samples-per-shard", "6", "--seed", "3"], "samples_per_shard 6"),
    (["synthetic:n=23:7", "OUT", "--shard-bytes", "1MiB", "--seed", "3"], "samples_per_shard None"),
]


def test_going_on_with_anything_else_is_refused_with_the_cure_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    killed_with(out)
    before = content(out)
    for arguments, why in OTHERS:
        assert main([str(out) if word == "OUT" else word for word in arguments]) == 2
        said = capsys.readouterr().err
        assert why in said
        assert "remove the folder" in said
        assert content(out) == before
    assert main(["synthetic:n=23:7", str(out), "--samples-per-shard", "5", "--seed", "3"]) == 0
    assert "10 samples were there" in capsys.readouterr().err


def test_a_source_that_has_changed_under_its_name_is_refused(tmp_path: Path) -> None:
    def some() -> object:
        yield from ROWS[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(some(), tmp_path, samples_per_shard=2, source="rows")
    with pytest.raises(UsageError, match="another first sample"):
        write((row for row in ROWS + 1), tmp_path, samples_per_shard=2, source="rows")


def test_a_stream_goes_on_too(tmp_path: Path) -> None:
    def some() -> object:
        yield from ROWS[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(some(), tmp_path, samples_per_shard=2, source="rows")
    counts: list[int] = []
    stream = (row for row in ROWS)
    write(stream, tmp_path, 2, source="rows", progress=lambda done, total: counts.append(done))
    assert counts == [4, *range(5, 11)]
    assert torch.equal(torch.stack(list(ShardedArrays(tmp_path))), ROWS)


def test_a_finished_folder_with_a_lock_in_it_is_not_cleared_by_a_write_of_something_unnamed(
    tmp_path: Path,
) -> None:
    write(ArrayDataset(ROWS), tmp_path)
    (tmp_path / WRITING).touch()
    with pytest.raises(UsageError, match=r"manifest\.json"):
        write(ArrayDataset(ROWS), tmp_path)
    assert len(ShardedArrays(tmp_path)) == 10

"""A write is whole or not there, and what cannot be written is named."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from shardlab.dataset._arrays import ArrayDataset
from shardlab.errors import RunFailed, UsageError
from shardlab.shards.manifest import load
from shardlab.shards.reader import ShardedArrays
from shardlab.shards.writer import WRITING, write

ROWS = torch.arange(30.0).reshape(10, 3)  # 12 bytes each


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_but_shards_and_manifest_remains(tmp_path: Path) -> None:
    write(ArrayDataset(ROWS), tmp_path, samples_per_shard=5)
    assert names(tmp_path) == ["manifest.json", "shard-00000.safetensors", "shard-00001.safetensors"]


SIZES = [(1, [1] * 10), (36, [3, 3, 3, 1]), (47, [3, 3, 3, 1]), (10**9, [10])]


@pytest.mark.parametrize(("shard_bytes", "samples"), SIZES)
def test_a_shard_holds_as_many_samples_as_fit(tmp_path: Path, shard_bytes: int, samples: list[int]) -> None:
    manifest = write(ArrayDataset(ROWS), tmp_path, shard_bytes=shard_bytes)
    assert [shard.samples for shard in manifest.shards] == samples
    assert load(tmp_path) == manifest


def test_the_same_dataset_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write(ArrayDataset(ROWS), tmp_path / name) for name in "ab")
    assert first == second


def test_a_stream_is_written_too(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(ROWS)

    assert write(Stream(), tmp_path, samples_per_shard=4).samples == 10
    assert torch.equal(torch.stack(list(ShardedArrays(tmp_path))), ROWS)


@pytest.mark.parametrize("known", [True, False])
def test_progress_counts_every_sample(tmp_path: Path, known: bool) -> None:
    calls: list[tuple[int, int]] = []
    dataset: Any = ArrayDataset(ROWS) if known else (row for row in ROWS)
    write(dataset, tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 10 if known else 0) for done in range(1, 11)]


BAD: list[tuple[list[Any], str]] = [
    ([torch.zeros(3), torch.zeros(3, 1)], r"axes of field 'data'.*\(1\).*2 in sample 1"),
    (["cat", b"cat"], r"field 'data'.*\(str\).*bytes in sample 1"),
    (["cat", 1], r"field 'data'.*\(str\).*int64 in sample 1"),
    (["\ud800"], "Unicode"),
    ([torch.zeros(3), torch.zeros(3, dtype=torch.int64)], "'data'.*float32.*int64 in sample 1"),
    ([{"a": 1, "b": 2}, {"a": 1}], r"fields.*\['a'\] in sample 1"),
    ([(1, 2), (1, 2, 3)], "fields.*in sample 1"),
    ([(1, 2), {"0": 1, "1": 2}], "structure.*dict in sample 1"),
    ([{"a": 1, "name": None}], "NoneType in field 'name' of sample 0"),
    ([{"a": 1}, {"a": None}], "NoneType in field 'a' of sample 1"),
    ([{"a": {"deep": 1}}], "dict in field 'a' of sample 0"),
    ([{1: 2}], "must be text"),
    ([2**70], "int in field 'data' of sample 0"),
    ([torch.zeros(3, dtype=torch.complex64)], "complex64 in field 'data'"),
    ([{"__metadata__": 1}], "none of them named __metadata__"),
    ([()], "must have fields"),
    ([], "must have samples"),
]


@pytest.mark.parametrize(("samples", "why"), BAD)
def test_samples_that_do_not_fit_are_named(tmp_path: Path, samples: list[Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        write(samples, tmp_path)
    assert "manifest.json" not in names(tmp_path)


def test_a_folder_with_anything_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for mark in ([], [WRITING]):
        for name in mark:
            (tmp_path / name).touch()
        with pytest.raises(UsageError, match=r"thesis\.tex"):
            write(ArrayDataset(ROWS), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_finished_folder_is_refused(tmp_path: Path) -> None:
    write(ArrayDataset(ROWS), tmp_path)
    with pytest.raises(UsageError, match=r"manifest\.json"):
        write(ArrayDataset(ROWS), tmp_path)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(UsageError, match="must be a folder"):
        write(ArrayDataset(ROWS), tmp_path / "x")


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / WRITING, "w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="one writer"):
            write(ArrayDataset(ROWS), tmp_path)


def test_a_disk_that_takes_no_more_is_a_failure_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shardlab.shards.writer.save_file", full)
    with pytest.raises(RunFailed, match="No space left"):
        write(ArrayDataset(ROWS), tmp_path)


KILLED = """
import os, signal, sys, torch
from shardlab.shards.writer import write

def samples():
    yield from torch.zeros(7, 3)
    os.kill(os.getpid(), signal.SIGKILL)

write(samples(), sys.argv[1], samples_per_shard=2)
"""


def test_a_killed_write_leaves_no_folder_that_opens_and_can_be_begun_anew(tmp_path: Path) -> None:
    status = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)]).returncode
    assert status == -signal.SIGKILL
    assert "shard-00002.safetensors" in names(tmp_path)
    with pytest.raises(UsageError, match=r"must have a manifest\.json"):
        ShardedArrays(tmp_path)
    write(ArrayDataset(ROWS), tmp_path, samples_per_shard=10)
    assert names(tmp_path) == ["manifest.json", "shard-00000.safetensors"]

"""What is written is read back: closed, grown, or left by a process that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlab.errors import RunFailed, UsageError
from shardlab.index.ledger import Ledger, RankLedger, ends_path, read, words_path

batches = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6), max_size=8)


def written(path: Path, steps, capacity: int = 64, close: bool = True) -> Ledger:
    ledger = Ledger.create(path, capacity)
    for step in steps:
        ledger.write(np.array(step, dtype=np.int64))
    if close:
        ledger.close()
    return ledger


def steps_of(ledger: RankLedger) -> list[list[int]]:
    starts = [0, *ledger.ends.tolist()]
    return [ledger.indices[a:b].tolist() for a, b in pairwise(starts)]


@given(steps=batches, capacity=st.integers(0, 20), close=st.booleans())
def test_every_step_comes_back_closed_or_not_and_whatever_the_capacity(
    tmp_path_factory, steps, capacity, close
):
    path = tmp_path_factory.mktemp("ledger") / "rank0"
    ledger = written(path, steps, capacity, close)
    assert steps_of(read(path)) == steps
    ledger.close()
    assert steps_of(read(path)) == steps


def test_more_steps_than_the_first_room_for_them(tmp_path):
    written(tmp_path / "rank0", [[step] for step in range(10_000)])
    assert read(tmp_path / "rank0").indices.tolist() == list(range(10_000))
    assert read(tmp_path / "rank0").steps == 10_000


def test_closing_leaves_only_the_bytes_that_were_written_and_may_be_repeated(tmp_path):
    ledger = Ledger.create(tmp_path / "rank0", 1000, words=True)
    ledger.write([7, 8, 9], np.array([1, 2, 2**64 - 1], dtype=np.uint64))
    ledger.close()
    ledger.close()
    assert np.fromfile(tmp_path / "rank0", "<i8").tolist() == [7, 8, 9]
    assert np.fromfile(words_path(tmp_path / "rank0"), "<u8").tolist() == [1, 2, 2**64 - 1]
    assert ends_path(tmp_path / "rank0").stat().st_size == 8


@pytest.mark.parametrize(
    "batch", [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2], np.int32), torch.tensor([3, 1, 2])]
)
def test_indices_may_be_any_list_of_whole_numbers(tmp_path, batch):
    ledger = Ledger.create(tmp_path / "rank0", 8)
    ledger.write(batch)
    assert read(tmp_path / "rank0").indices.tolist() == [3, 1, 2]
    ledger.close()


@pytest.mark.parametrize("batch", [[0.5], [[1, 2]], 3, ["a"], [True]])
def test_anything_else_is_refused(tmp_path, batch):
    ledger = Ledger.create(tmp_path / "rank0", 8)
    with pytest.raises(UsageError, match="one whole number for each sample"):
        ledger.write(batch)
    ledger.close()
    assert read(tmp_path / "rank0").steps == 0


@pytest.mark.parametrize(("words", "word"), [(True, None), (True, [1]), (False, [1, 2])])
def test_words_must_be_given_where_and_only_where_they_are_kept(tmp_path, words, word):
    ledger = Ledger.create(tmp_path / "rank0", 8, words=words)
    with pytest.raises(UsageError, match="content word"):
        ledger.write([0, 1], word)
    ledger.close()
    assert read(tmp_path / "rank0").steps == 0


def test_words_grow_with_the_indices(tmp_path):
    ledger = Ledger.create(tmp_path / "rank0", 1, words=True)
    for step in range(50):
        ledger.write([step, step], [step + 1, step + 2])
    ledger.close()
    kept = read(tmp_path / "rank0").words
    assert kept is not None
    assert kept.tolist() == [word for step in range(50) for word in (step + 1, step + 2)]


def test_a_new_ledger_leaves_nothing_of_an_older_one(tmp_path):
    old = Ledger.create(tmp_path / "rank0", 8, words=True)
    old.write([1, 2, 3], [4, 5, 6])
    old.close()
    written(tmp_path / "rank0", [[9]])
    assert steps_of(read(tmp_path / "rank0")) == [[9]]
    assert read(tmp_path / "rank0").words is None


def test_between_cuts_out_one_epoch():
    ledger = RankLedger(np.arange(6), np.array([2, 2, 5, 6]), np.arange(6, dtype=np.uint64))
    second = ledger.between(1, 3)
    assert steps_of(second) == [[], [2, 3, 4]]
    assert second.words is not None
    assert second.words.tolist() == [2, 3, 4]
    assert steps_of(ledger.between(0, 4)) == [[0, 1], [], [2, 3, 4], [5]]
    assert ledger.between(5, 9).steps == 0


def test_a_killed_rank_leaves_what_it_was_handed(tmp_path):
    path = tmp_path / "rank0"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom shardlab.index.ledger import Ledger\n"
        "ledger = Ledger.create(Path(sys.argv[1]), 10)\n"
        "for step in range(100): ledger.write([step, step + 1, step + 2])\n"
        "print('written', flush=True)\ntime.sleep(60)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.send_signal(signal.SIGKILL)
    assert steps_of(read(path)) == [[step, step + 1, step + 2] for step in range(100)]


def test_an_unfinished_step_does_not_count(tmp_path):
    written(tmp_path / "rank0", [[5, 6], [7]])
    with (tmp_path / "rank0").open("ab") as file:
        file.write(np.array([8], "<i8").tobytes())  # indices there, the entry of their step not yet
    assert steps_of(read(tmp_path / "rank0")) == [[5, 6], [7]]


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "rank0")


def test_fewer_indices_than_were_counted_is_damage(tmp_path):
    written(tmp_path / "rank0", [[5, 6], [7]])
    os.truncate(tmp_path / "rank0", 16)
    with pytest.raises(RunFailed, match="3 entries were counted, 2 are there"):
        read(tmp_path / "rank0")


@pytest.mark.parametrize("stored", [[3, 2], [-4], [1, -1]])
def test_counts_that_fall_are_damage(tmp_path, stored):
    written(tmp_path / "rank0", [[5, 6], [7]])
    np.array(stored, "<i8").tofile(ends_path(tmp_path / "rank0"))
    with pytest.raises(RunFailed, match="must not fall"):
        read(tmp_path / "rank0")


def test_a_disk_without_room_is_an_error_with_the_size_and_not_a_signal(tmp_path):
    with pytest.raises(RunFailed, match=r"needs \d+ bytes at .*rank0"):
        Ledger.create(tmp_path / "rank0", 1 << 55)
    assert list(tmp_path.iterdir()) == []

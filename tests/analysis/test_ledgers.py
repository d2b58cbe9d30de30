"""Kept ledgers come back as ranks x steps x batch, and a file that is no ledger is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardlab.analysis import delivered
from shardlab.errors import RunFailed, UsageError


def keep(folder: Path, name: str, *indices: int) -> None:
    (folder / "ledger").mkdir(exist_ok=True)
    np.save(folder / "ledger" / f"{name}.npy", np.array(indices, dtype=np.int64), allow_pickle=False)


def test_ranks_are_cut_into_steps_and_padded(tmp_path: Path) -> None:
    keep(tmp_path, "r-1-0", 0, 2, 4, 6, 8)
    keep(tmp_path, "r-1-1", 1, 3)
    indices = delivered(tmp_path, "r-1", 2)
    assert indices.dtype == np.int64
    assert indices.tolist() == [[[0, 2], [4, 6], [8, -1]], [[1, 3], [-1, -1], [-1, -1]]]


def test_a_rank_without_a_file_was_handed_nothing(tmp_path: Path) -> None:
    keep(tmp_path, "r-2", 5)
    assert delivered(tmp_path, "r", 1).tolist() == [[[-1]], [[-1]], [[5]]]


def test_of_training_it_is_the_last_epoch_or_the_one_asked_for(tmp_path: Path) -> None:
    for epoch in (2, 9, 10):
        keep(tmp_path, f"r-0-{epoch}", epoch)
    assert delivered(tmp_path, "r", 1).tolist() == [[[10]]]
    assert delivered(tmp_path, "r", 1, epoch=2).tolist() == [[[2]]]
    with pytest.raises(RunFailed, match="no ledger of run r"):
        delivered(tmp_path, "r", 1, epoch=3)


def test_ranks_that_were_handed_nothing_have_no_steps(tmp_path: Path) -> None:
    keep(tmp_path, "r-0")
    assert delivered(tmp_path, "r", 4).shape == (1, 0, 4)


def test_no_ledger_says_how_to_keep_one(tmp_path: Path) -> None:
    keep(tmp_path, "other-0", 1)
    with pytest.raises(RunFailed, match="--keep-ledger"):
        delivered(tmp_path, "r", 1)


@pytest.mark.parametrize("content", [b"", b"not numpy", None])
def test_a_file_that_is_no_ledger_is_named(tmp_path: Path, content: bytes | None) -> None:
    keep(tmp_path, "r-0", 1)
    file = tmp_path / "ledger" / "r-0.npy"
    if content is None:
        np.save(file, np.array([{"an": "object"}]), allow_pickle=True)
    else:
        file.write_bytes(content)
    with pytest.raises(RunFailed, match=r"r-0\.npy is no ledger"):
        delivered(tmp_path, "r", 1)


@pytest.mark.parametrize("values", [np.zeros((2, 2), dtype=np.int64), np.zeros(2)])
def test_other_arrays_are_no_ledgers(tmp_path: Path, values: np.ndarray) -> None:
    (tmp_path / "ledger").mkdir()
    np.save(tmp_path / "ledger" / "r-0.npy", values)
    with pytest.raises(RunFailed, match="whole numbers"):
        delivered(tmp_path, "r", 1)


@pytest.mark.parametrize(("run_id", "batch_size"), [("../r", 1), ("r", 0), ("", 1)])
def test_wrong_arguments_are_refused(tmp_path: Path, run_id: str, batch_size: int) -> None:
    with pytest.raises(UsageError):
        delivered(tmp_path, run_id, batch_size)

"""An ``.npy`` file is a dataset in memory or mapped, or it is said why not."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardlab.dataset import DatasetSpec, facts_without_building, open_dataset
from shardlab.errors import UsageError


def saved(folder: Path, array: Any) -> DatasetSpec:
    np.save(folder / "x.npy", array, allow_pickle=True)
    return DatasetSpec(str(folder / "x.npy"))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 3, 2), (0, 3), (3, 0), (1, 1)])
def test_samples_are_the_rows(tmp_path: Path, shape: tuple[int, ...], mapped: bool) -> None:
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    dataset: Any = open_dataset(saved(tmp_path, array), mapped=mapped)
    assert len(dataset) == shape[0]
    for index, row in enumerate(array):
        assert dataset[index].numpy().tolist() == row.tolist()


def test_facts_come_from_the_header(tmp_path: Path) -> None:
    facts = facts_without_building(saved(tmp_path, np.full((7, 2, 5), 9, np.int64)))
    assert facts is not None
    assert (facts.samples, facts.dataset_bytes) == (7, 7 * 80)
    assert facts.sample == {"kind": "tensor", "dtype": "int64", "shape": [2, 5], "high": 9}
    assert facts.files == (str(tmp_path / "x.npy"),)


def test_writing_to_a_mapped_sample_leaves_the_file_alone(tmp_path: Path) -> None:
    spec = saved(tmp_path, np.zeros((4, 3), np.float32))
    dataset: Any = open_dataset(spec, mapped=True)
    dataset[1].add_(1)
    assert dataset[1].tolist() == [1, 1, 1]
    assert not np.load(spec.text).any()


def test_a_mapped_dataset_travels_by_path(tmp_path: Path) -> None:
    dataset: Any = open_dataset(saved(tmp_path, np.arange(100_000).reshape(1000, 100)), mapped=True)
    sent = pickle.dumps(dataset)
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent)[999], dataset[999])


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.array([{}, {}], dtype=object), "whole file of numbers"),
        (np.asfortranarray(np.zeros((3, 4))), "Fortran order"),
        (np.float32(3), "no axes"),
        (np.zeros(3, ">i4"), "dtype that torch knows"),
        (np.array(["a", "b"]), "dtype that torch knows"),
        (np.zeros(3, [("a", "i4")]), "dtype that torch knows"),
    ],
)
def test_an_array_that_is_no_dataset_is_refused(tmp_path: Path, array: Any, why: str) -> None:
    spec = saved(tmp_path, array)
    for look in (facts_without_building, open_dataset):
        with pytest.raises(UsageError, match=why):
            look(spec)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    spec = saved(tmp_path, np.zeros((10, 3)))
    whole = Path(spec.text).read_bytes()
    for size in (0, 3, 10, 100, 128, len(whole) - 1):
        Path(spec.text).write_bytes(whole[:size])
        with pytest.raises(UsageError, match="whole file of numbers"):
            open_dataset(spec)


@pytest.mark.parametrize("content", [b"garbage" * 50, b"PK\x03\x04" + bytes(50), pickle.dumps([1])])
def test_a_file_of_something_else_is_refused_and_not_unpickled(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(UsageError, match="whole file of numbers"):
        open_dataset(DatasetSpec(str(tmp_path / "x.npy")))


def test_an_archive_under_the_wrong_name_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "x.npy", "wb") as file:
        np.savez(file, a=np.zeros(3))
    with pytest.raises(UsageError, match="must hold one array"):
        open_dataset(DatasetSpec(str(tmp_path / "x.npy")))

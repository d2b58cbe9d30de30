"""What a user's factory may return, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from shardlab.dataset import DatasetSpec, facts_without_building, import_for, kind_of, open_dataset
from shardlab.dataset._factory import as_dataset
from shardlab.errors import UsageError


class Numbers:
    """Iterable again and again, and no torch class."""

    def __iter__(self) -> Any:
        return iter(range(3))


def opened(result: Any) -> Any:
    return as_dataset(result, "file.py:factory")


def test_a_dataset_is_returned_as_it_is() -> None:
    dataset = TensorDataset(torch.zeros(3))
    assert opened(dataset) is dataset


def test_a_list_keeps_its_own_objects() -> None:
    items = [{"a": 1}, {"a": 2}]
    dataset = opened(items)
    assert len(dataset) == 2
    assert dataset[1] is items[1]


def test_arrays_are_sequences_of_samples_and_are_not_copied() -> None:
    array, tensor = np.arange(6).reshape(3, 2), torch.arange(6).reshape(3, 2)
    assert np.shares_memory(opened(array)[1], array)
    assert opened(tensor)[1].data_ptr() == tensor[1].data_ptr()


def test_an_iterable_becomes_a_stream_that_starts_anew() -> None:
    dataset = opened(Numbers())
    assert isinstance(dataset, IterableDataset)
    assert list(dataset) == list(dataset) == [0, 1, 2]


@pytest.mark.parametrize("result", [None, 3, "text", b"bytes", {"a": 1}, torch.tensor(1), np.array(1)])
def test_what_is_no_dataset_is_refused(result: Any) -> None:
    with pytest.raises(UsageError, match=r"file\.py:factory must return a dataset"):
        opened(result)


def test_a_generator_is_refused_since_it_has_one_epoch() -> None:
    with pytest.raises(UsageError, match="each epoch can read again"):
        opened(i for i in range(3))


def test_columns_are_not_mistaken_for_samples() -> None:
    with pytest.raises(UsageError, match=r"a tuple of 2 arrays.*TensorDataset"):
        opened((torch.zeros(10, 3), torch.zeros(10)))


def write_user_file(folder: Path) -> str:
    path = folder / f"{folder.name}_data.py"  # a module of its own for each test
    path.write_text(
        "def numbers(): return [1, 2, 3]\n"
        "def fails(): raise ZeroDivisionError('mine')\n"
        "def needy(folder): return [folder]\n"
        "def defaulted(n=2): return list(range(n))\n"
    )
    return str(path)


def test_a_factory_is_found_in_its_file_and_called(tmp_path: Path) -> None:
    path = write_user_file(tmp_path)
    assert list(open_dataset(DatasetSpec(f"{path}:numbers"))) == [1, 2, 3]  # type: ignore[call-overload]
    assert list(open_dataset(DatasetSpec(f"{path}:defaulted"))) == [0, 1]  # type: ignore[call-overload]


def test_a_users_own_exception_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="mine"):
        open_dataset(DatasetSpec(f"{write_user_file(tmp_path)}:fails"))


def test_a_factory_with_arguments_is_refused_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must need no arguments.*'folder'"):
        open_dataset(DatasetSpec(f"{write_user_file(tmp_path)}:needy"))


def test_a_missing_name_gets_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="numbers"):
        open_dataset(DatasetSpec(f"{write_user_file(tmp_path)}:nummbers"))


def test_importing_for_a_factory_builds_nothing(tmp_path: Path) -> None:
    spec = DatasetSpec(f"{write_user_file(tmp_path)}:fails")
    assert kind_of(spec) == "factory"
    import_for(spec)
    assert facts_without_building(spec) is None

"""A dataset's own collate function is found again by its name, or known to need the dataset."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import TensorDataset, default_collate

from shardlab.dataset import DatasetFacts, DatasetSpec, decode_facts, encode_facts, import_for, measure
from shardlab.dataset._facts import collate_name


def together(samples: list[Any]) -> Any:
    """A collate function of a module."""
    return tuple(samples)


@functools.wraps(together)
def posing(samples: list[Any]) -> Any:
    """Bears the name of another."""
    return list(samples)


class Holder:
    """A dataset with whatever attributes a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Static:
    @staticmethod
    def collate_fn(samples: list[Any]) -> Any:
        return set(samples)


class Inherited(Static):
    pass


class OfClass:
    @classmethod
    def collate_fn(cls, samples: list[Any]) -> Any:
        return cls, samples


class Bound:
    def collate_fn(self, samples: list[Any]) -> Any:
        return self, samples


class Callable:
    def __call__(self, samples: list[Any]) -> Any:
        return samples


@pytest.mark.parametrize(
    "dataset",
    [Holder(collate_fn=together), Holder(collate_fn=default_collate), Static(), Inherited(), OfClass()],
    ids=["of a module", "torch's own", "static", "inherited", "of a class"],
)
def test_a_collate_function_with_a_name_is_found_again_from_json(dataset: Any) -> None:
    facts = DatasetFacts(1, None, {"kind": "none"}, collate=collate_name(dataset))
    assert decode_facts(encode_facts(facts)).import_collate() == dataset.collate_fn


@pytest.mark.parametrize(
    "function",
    [lambda samples: samples, Bound().collate_fn, Callable(), functools.partial(together), posing],
    ids=["a lambda", "bound", "an object", "partial", "another's name"],
)
def test_one_that_no_name_leads_to_is_known_to_be_there(function: Any) -> None:
    name = collate_name(Holder(collate_fn=function))
    assert name == ""
    assert DatasetFacts(1, None, {"kind": "none"}, collate=name).import_collate() is None


def test_most_datasets_have_none() -> None:
    assert collate_name(TensorDataset()) is None
    assert DatasetFacts(1, None, {"kind": "none"}).import_collate() is None


def test_measuring_a_users_dataset_says_its_collate_function(tmp_path: Path) -> None:
    path = tmp_path / "users_collate.py"
    path.write_text(
        "class Words(list):\n"
        "    @staticmethod\n"
        "    def collate_fn(samples): return ' '.join(samples)\n"
        "class Rows:\n"
        "    collate_fn = staticmethod(Words.collate_fn)\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, index): return 'ab'[index]\n"
    )
    spec = DatasetSpec(f"{path}:Rows")
    facts = measure(spec)
    import_for(spec)
    collate = facts.import_collate()
    assert facts.collate == "users_collate:Words.collate_fn"
    assert collate is not None
    assert collate(["a", "b"]) == "a b"

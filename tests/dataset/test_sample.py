"""A sample's tree describes it, and what is made from the tree is like it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, default_collate

from shardlab.dataset import DatasetFacts, blank_sample, describe_sample, sample_bytes, stand_in
from shardlab.dataset._arrays import ArrayDataset

TENSOR = torch.zeros(3, 4, dtype=torch.int16)
SAMPLES: list[tuple[Any, int]] = [
    (TENSOR, 24),
    (torch.zeros(2, dtype=torch.bfloat16), 4),
    (torch.zeros(2, 2, dtype=torch.uint32), 16),
    (torch.tensor(True), 1),
    (np.zeros((2, 5), np.float64), 80),
    (np.int32(3), 4),
    (7, 8),
    (2**80, 8),
    (-3, 8),
    (0.5, 8),
    (True, 1),
    (None, 0),
    ("héllo", 5),
    (b"abc", 3),
    ((TENSOR, 3), 32),
    ([1, "ab", [2.0]], 18),
    ({"image": TENSOR, 5: "x"}, 25),
]


def shape_of(tree: Any) -> Any:
    """A tree without its largest integers, which differ between a sample and its stand-in."""
    if isinstance(tree, dict):
        return {key: shape_of(value) for key, value in tree.items() if key != "high"}
    return [shape_of(item) for item in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize(("sample", "size"), SAMPLES)
def test_a_tree_survives_json_and_knows_the_payload(sample: Any, size: int) -> None:
    tree = describe_sample(sample)
    assert msgspec.json.decode(msgspec.json.encode(tree)) == tree
    assert sample_bytes(tree) == size


@pytest.mark.parametrize(("sample", "size"), SAMPLES)
def test_blanks_and_stand_ins_are_of_the_same_shape_and_type(sample: Any, size: int) -> None:
    tree = describe_sample(sample)
    stood = stand_in(DatasetFacts(1000, None, tree), 3)
    assert len(stood) == 3  # type: ignore[arg-type]
    for made in (blank_sample(tree), stood[0], stood[2]):
        assert type(made) is type(sample)
        assert shape_of(describe_sample(made)) == shape_of(tree)


def test_a_foreign_object_is_described_by_type_and_bytes() -> None:
    from PIL import Image

    tree = describe_sample(Image.new("RGB", (10, 20)))
    assert tree == {"kind": "object", "type": "PIL.Image.Image", "bytes": 600}
    assert len(blank_sample(tree)) == 600


def test_stand_ins_hold_distinct_content() -> None:
    tensors = stand_in(DatasetFacts(9, None, describe_sample(torch.zeros(100, dtype=torch.uint8))), 20)
    assert isinstance(tensors, ArrayDataset)
    assert len({bytes(row.numpy()) for row in tensors}) == 20
    texts = stand_in(DatasetFacts(9, None, describe_sample({"name": "x" * 50})), 20)
    assert len({item["name"] for item in texts}) == 20
    assert len({id(item["name"]) for item in texts}) == 20


def test_labels_of_a_stand_in_stay_within_those_seen() -> None:
    facts = DatasetFacts(9, None, describe_sample((torch.tensor([3, 9]), 5)))
    for tokens, label in stand_in(facts, 200):  # type: ignore[attr-defined]
        assert 0 <= label <= 5
        assert tokens.min() >= 0
        assert tokens.max() <= 9


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16"])
@given(seen=st.integers(0, 127))
def test_a_label_of_a_stand_in_is_the_one_that_was_seen(dtype: str, seen: int) -> None:
    as_torch, as_numpy = torch.tensor(seen, dtype=getattr(torch, dtype)), np.dtype(dtype).type(seen)
    for sample in (as_torch, as_numpy, seen, as_torch.view(1), np.array([seen], dtype)):
        image = torch.zeros(2, 2, dtype=torch.uint8)
        labels = [label for _, label in stand_in(DatasetFacts(9, None, describe_sample((image, sample))), 4)]  # type: ignore[attr-defined]
        assert [np.asarray(label).item() for label in labels] == [seen] * 4
        assert {getattr(label, "dtype", int) for label in labels} == {getattr(sample, "dtype", int)}


@pytest.mark.parametrize("label", [-1, np.int8(-1), torch.tensor(-100)])
def test_a_label_below_zero_stands_for_the_first_class(label: Any) -> None:
    assert {int(made) for made in stand_in(DatasetFacts(9, None, describe_sample(label)), 3)} == {0}  # type: ignore[attr-defined]


def test_rows_of_a_tuple_or_dict_of_tensors_are_arrays() -> None:
    for sample in ((TENSOR, TENSOR), {"a": TENSOR, "b": TENSOR}):
        dataset = stand_in(DatasetFacts(9, None, describe_sample(sample)), 4)
        assert isinstance(dataset, ArrayDataset)
        default_collate([dataset[0], dataset[1]])


def test_a_stand_in_of_a_stream_is_a_stream() -> None:
    dataset = stand_in(DatasetFacts(None, None, describe_sample(7), iterable=True), 5)
    assert isinstance(dataset, IterableDataset)
    assert len(list(dataset)) == len(list(dataset)) == 5


def test_the_seed_decides_the_content() -> None:
    facts = DatasetFacts(9, None, describe_sample(torch.zeros(10)))
    assert torch.equal(stand_in(facts, 2, seed=1)[1], stand_in(facts, 2, seed=1)[1])
    assert not torch.equal(stand_in(facts, 2, seed=1)[1], stand_in(facts, 2, seed=2)[1])

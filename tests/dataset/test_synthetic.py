"""Synthetic content says which sample it is, and is the same wherever it is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.dataset import DatasetSpec, facts_without_building, open_dataset
from shardlab.dataset import synthetic as syn
from shardlab.errors import UsageError

DTYPES = st.sampled_from([*syn.INTEGERS, *syn.MANTISSA_BITS])
SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)
LAYOUTS = st.builds(syn.Layout, st.integers(0, 40), SHAPES, DTYPES, st.integers(0, 2**40))


def built(layout: syn.Layout) -> torch.Tensor:
    text = f"synthetic:n={layout.samples}:{'x'.join(map(str, layout.shape))}:{layout.dtype}"
    return open_dataset(DatasetSpec(text, seed=layout.seed)).tree


@settings(max_examples=60, deadline=None)
@given(LAYOUTS, st.data())
def test_rows_and_first_words_are_those_of_the_whole_dataset(layout: syn.Layout, data: st.DataObject) -> None:
    whole = built(layout)
    assert whole.shape == (layout.samples, *layout.shape)
    places = st.lists(st.integers(0, layout.samples - 1)) if layout.samples else st.just([])
    indices = np.array(data.draw(places), np.int64)
    picked = whole[torch.from_numpy(indices)]
    assert torch.equal(syn.rows(layout, indices), picked)
    assert syn.first_words(layout, indices).tolist() == syn.words_of_batch(picked).tolist()


@settings(max_examples=40, deadline=None)
@given(LAYOUTS)
def test_words_of_a_batch_are_its_first_bytes(layout: syn.Layout) -> None:
    whole = built(layout)
    raw = [row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()[:8] for row in whole]
    assert syn.words_of_batch(whole).tolist() == [int.from_bytes(head, "little") for head in raw]


def test_words_are_read_from_views_that_are_not_contiguous() -> None:
    batch = torch.arange(2 * 30, dtype=torch.int16).reshape(2, 5, 6)
    turned = batch.transpose(1, 2)
    assert syn.words_of_batch(turned).tolist() == syn.words_of_batch(turned.contiguous()).tolist()


@pytest.mark.parametrize("dtype", syn.MANTISSA_BITS)
def test_floats_are_finite_spread_evenly_and_below_one(dtype: str) -> None:
    values = built(syn.Layout(100, (1000,), dtype)).double()
    assert 0 <= values.min() < 0.01
    assert 0.98 < values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.01


def test_all_bytes_occur_about_equally_often() -> None:
    counts = torch.bincount(built(syn.Layout(256, (1000,), "uint8")).reshape(-1).int(), minlength=256)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_no_two_words_of_a_dataset_are_equal() -> None:
    words = built(syn.Layout(1000, (64,), "int64")).reshape(-1)
    assert words.unique().numel() == words.numel()


def test_the_seed_and_neighbouring_seeds_give_other_content() -> None:
    first, second = (built(syn.Layout(1000, (8,), "int64", seed)).reshape(-1) for seed in (0, 1))
    assert not np.isin(first.numpy(), second.numpy()).any()


def test_a_sample_does_not_depend_on_how_many_there_are() -> None:
    assert torch.equal(built(syn.Layout(3, (5, 5), "uint8")), built(syn.Layout(50, (5, 5), "uint8"))[:3])


def test_a_sample_longer_than_a_chunk_is_whole() -> None:
    layout = syn.Layout(2, (8 * syn.CHUNK_WORDS + 13,), "uint8")
    assert torch.equal(built(layout), syn.rows(layout, np.arange(2)))


@pytest.mark.parametrize(
    ("args", "samples", "shape", "dtype"),
    [
        ("", 1783, (3, 224, 224), "uint8"),
        ("1MiB:784", 1337, (784,), "uint8"),
        ("1000000:10x10:float32", 2500, (10, 10), "float32"),
        ("n=17", 17, (3, 224, 224), "uint8"),
        ("n=2k:1", 2000, (1,), "uint8"),
        ("100B:3x7", 4, (3, 7), "uint8"),
        ("20:3x7", 0, (3, 7), "uint8"),
    ],
)
def test_arguments_say_size_shape_and_dtype(
    args: str, samples: int, shape: tuple[int, ...], dtype: str
) -> None:
    assert syn.parse(args, 3) == syn.Layout(samples, shape, dtype, 3)


@pytest.mark.parametrize(
    "args",
    ["x", "-1", "1MiB:0", "1MiB:3x", "1MiB:3:int", "1MiB:3:uint8:4", "n=", "n=1.5x", "1EiB", "n=5G"],
)
def test_wrong_arguments_are_refused(args: str) -> None:
    with pytest.raises(UsageError, match="--dataset synthetic:SIZE"):
        syn.parse(args)


def test_facts_are_known_without_building() -> None:
    facts = facts_without_building(DatasetSpec("synthetic:1TiB:1000:float32"))
    assert facts is not None
    assert facts.samples == 2**40 // 4000
    assert facts.dataset_bytes == 2**40 // 4000 * 4000
    assert facts.sample == {"kind": "tensor", "dtype": "float32", "shape": [1000]}

"""Global positions, hashes of an order, and the layouts against the loaders they describe."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from shardlab.index.order import (
    LAYOUTS,
    due,
    expected_index,
    full_rounds,
    global_positions,
    hex16,
    merge,
    order_hash,
    places,
    set_hash,
)

sizes = st.lists(st.integers(0, 6), max_size=8)
indices = st.lists(st.integers(-3, 2**63 - 1), max_size=20)


def i64(values) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def order_of(values) -> int:
    return order_hash(np.arange(len(values)), i64(values))


@given(sizes)
def test_places_number_each_batch_from_zero(batch_sizes):
    step, place = places(np.cumsum(i64(batch_sizes)))
    wanted = [(s, j) for s, size in enumerate(batch_sizes) for j in range(size)]
    assert list(zip(step.tolist(), place.tolist(), strict=True)) == wanted


def test_positions_of_two_ranks_with_batches_of_two():
    assert global_positions(i64([2, 4]), 0, 2, 2).tolist() == [0, 1, 4, 5]
    assert global_positions(i64([2, 4]), 1, 2, 2).tolist() == [2, 3, 6, 7]


def test_a_short_batch_moves_nothing_after_it():
    assert global_positions(i64([1, 1, 3]), 1, 2, 2).tolist() == [2, 10, 11]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 5))
def test_full_batches_of_all_ranks_fill_the_global_order_without_a_gap(world_size, batch_size, steps):
    ends = np.arange(1, steps + 1) * batch_size
    taken = [global_positions(ends, rank, world_size, batch_size) for rank in range(world_size)]
    assert sorted(np.concatenate(taken).tolist()) == list(range(steps * world_size * batch_size))


@given(indices, st.integers(0, 20))
def test_hashes_of_parts_merge_into_the_hash_of_the_whole(values, cut):
    position = np.arange(len(values))
    parts = [order_hash(position[:cut], i64(values[:cut])), order_hash(position[cut:], i64(values[cut:]))]
    assert merge(parts) == merge(reversed(parts)) == order_of(values)
    assert merge([set_hash(i64(values[:cut])), set_hash(i64(values[cut:]))]) == set_hash(i64(values))


@given(indices, st.data())
def test_two_swapped_samples_change_the_order_but_not_the_set(values, data):
    a, b = (data.draw(st.integers(0, max(len(values) - 1, 0))) for _ in "ab")
    swapped = list(values)
    if values:
        swapped[a], swapped[b] = swapped[b], swapped[a]
    assert (order_of(swapped) == order_of(values)) == (swapped == values)
    assert set_hash(i64(swapped)) == set_hash(i64(values))


@given(indices, st.integers(0, 3))
def test_one_sample_more_changes_the_set(values, extra):
    assert set_hash(i64([*values, extra])) != set_hash(i64(values))


def test_nothing_delivered_hashes_to_zero():
    assert order_of([]) == set_hash(i64([])) == merge([]) == 0


def test_hex16_keeps_leading_zeros_and_all_64_bits():
    assert hex16(0) == "0" * 16
    assert hex16(2**64 - 1) == "f" * 16
    assert int(hex16(0xABC), 16) == 0xABC


def expected_of(layout, samples, rank, world_size, batch_size):
    steps = int(full_rounds(layout, samples, world_size, batch_size)[rank])
    step, place = places(np.arange(1, steps + 1) * batch_size)
    return expected_index(
        layout, np.array(rank), step, place, samples=samples, world_size=world_size, batch_size=batch_size
    ).tolist()


@pytest.mark.parametrize(
    ("layout", "rank_0", "rank_1"),
    [
        ("strided", [0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]),
        ("batches", [0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]),
        ("blocks", [0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]),
    ],
)
def test_twelve_samples_in_each_layout(layout, rank_0, rank_1):
    assert expected_of(layout, 12, 0, 2, 2) == rank_0
    assert expected_of(layout, 12, 1, 2, 2) == rank_1


def test_strided_is_the_order_of_the_distributed_sampler():
    for samples in range(1, 30):
        for world_size, batch_size in [(1, 1), (2, 3), (3, 2), (4, 5)]:
            for rank in range(world_size):
                sampler = DistributedSampler(range(samples), world_size, rank, shuffle=False)
                full = expected_of("strided", samples, rank, world_size, batch_size)
                assert list(sampler)[: len(full)] == full


def test_batches_is_the_order_of_a_batch_sampler_dealt_out_by_turns():
    for samples in range(30):
        for world_size, batch_size in [(1, 1), (2, 3), (3, 2), (4, 5)]:
            dealt = list(BatchSampler(range(samples), batch_size, drop_last=False))
            for rank in range(world_size):
                full = expected_of("batches", samples, rank, world_size, batch_size)
                assert list(chain(*dealt[rank::world_size]))[: len(full)] == full


cases = {"samples": st.integers(0, 200), "world_size": st.integers(1, 9), "batch_size": st.integers(1, 9)}


@given(layout=st.sampled_from(LAYOUTS), **cases)
def test_full_rounds_give_no_sample_twice_and_leave_less_than_two_rounds(
    layout, samples, world_size, batch_size
):
    ranks = [expected_of(layout, samples, rank, world_size, batch_size) for rank in range(world_size)]
    given_out = list(chain(*ranks))
    assert len(set(given_out)) == len(given_out)
    assert set(given_out) <= set(range(samples))
    assert samples - len(given_out) < 2 * world_size * batch_size


@given(layout=st.sampled_from(LAYOUTS), **cases)
def test_due_names_the_place_where_the_sample_is_expected(layout, samples, world_size, batch_size):
    size = {"samples": samples, "world_size": world_size, "batch_size": batch_size}
    for index in range(samples):
        rank, step, place = due(layout, index, **size)
        assert 0 <= rank < world_size
        assert 0 <= place < batch_size
        at = np.array([rank]), np.array([step]), np.array([place])
        assert expected_index(layout, *at, **size).tolist() == [index]

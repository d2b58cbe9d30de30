"""Laws of the hashes, and the published values of SplitMix64."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.index.mixing import mix, mix2

numbers = st.integers(0, 2**64 - 1)
GAMMA = 0x9E3779B97F4A7C15


def u64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@pytest.mark.parametrize(
    ("seed", "stream"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]),
    ],
)
def test_mix_of_successive_states_is_the_published_splitmix64_stream(seed, stream):
    states = [(seed + nth * GAMMA) % 2**64 for nth in range(len(stream))]
    assert mix(u64(*states)).tolist() == stream


def test_no_number_near_zero_hashes_to_zero():
    assert np.all(mix(np.arange(1000, dtype=np.uint64)) != 0)


def test_mix_has_no_collision_among_many_numbers():
    ends = np.concatenate([np.arange(1 << 16), -np.arange(1, 1 << 16)]).astype(np.int64).view(np.uint64)
    assert len(np.unique(mix(ends))) == len(ends)


@given(numbers, st.integers(0, 63))
def test_one_bit_changes_many_bits(x, bit):
    before, after = mix(u64(x, x ^ (1 << bit))).tolist()
    assert 8 <= (before ^ after).bit_count() <= 56


@given(numbers)
def test_one_number_mixes_as_it_does_in_an_array_and_without_a_warning(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = mix(np.array(x, dtype=np.uint64))
    assert alone.shape == ()
    assert int(alone) == int(mix(u64(x, 1))[0])


def test_mix_leaves_its_input_as_it_was():
    x = u64(1, 2, 3)
    mix(x)
    assert x.tolist() == [1, 2, 3]


@given(numbers, numbers)
def test_the_order_of_a_pair_matters(a, b):
    assert (mix2(u64(a), u64(b)) == mix2(u64(b), u64(a))).item() == (a == b)


@given(numbers, numbers, numbers)
def test_pairs_that_share_one_member_do_not_collide(a, b, c):
    assert (mix2(u64(a), u64(b)) == mix2(u64(a), u64(c))).item() == (b == c)
    assert (mix2(u64(b), u64(a)) == mix2(u64(c), u64(a))).item() == (b == c)


def test_mix2_broadcasts():
    grid = mix2(np.arange(3, dtype=np.uint64)[:, None], np.arange(4, dtype=np.uint64))
    assert grid.shape == (3, 4)
    assert len(np.unique(grid)) == 12

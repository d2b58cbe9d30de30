"""Keyed permutations: exact for every n, and no further from true permutations than these are from each other.

The statistics are chi-square sums over cells of equal expectation, given as z = (x - dof) / sqrt(2 dof), and
held to |z| < 5; keys are fixed, so a test passes or fails for good. True permutations (numpy's) go through
each of them as the control, and an order that is known to be weak shows that they can tell.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.index import permutation
from shardlab.index.permutation import BLOCK, MOST, TABLE_BELOW, Permutation, key_of

Order = Callable[[int, int], np.ndarray]  # (n, which) -> the whole order

EDGES = [2**power + off for power in range(9, 23) for off in (-1, 0, 1)]
HUGE = sorted({min(2**power + off, MOST) for power in range(32, 63) for off in (-1, 0, 1)})
Z = 5.0


def keyed(n: int, which: int) -> np.ndarray:
    return Permutation(n, key_of(seed=5, epoch=which)).chunk(0, n)


def true(n: int, which: int) -> np.ndarray:
    return np.random.default_rng((5, which)).permutation(n)


def affine(n: int, which: int) -> np.ndarray:
    """A bijection of no quality: equal steps."""
    step = next(s for s in range(n * 2 // 3 + which, 2 * n) if np.gcd(s, n) == 1)
    return (np.arange(n) * step + which) % n


def is_bijection(n: int, key: int) -> bool:
    perm = Permutation(n, key)
    order = perm.chunk(0, n)
    return bool(np.bincount(order, minlength=n).all()) and np.array_equal(perm.invert(order), np.arange(n))


# --- exactness --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_every_small_n_is_permuted_exactly(seed: int) -> None:
    assert [n for n in range(1, 301) if not is_bijection(n, key_of(seed, n))] == []


@pytest.mark.parametrize("n", EDGES)
def test_powers_of_two_and_their_neighbours_are_permuted_exactly(n: int) -> None:
    assert is_bijection(n, key_of(3, n))


@settings(deadline=None, max_examples=50)
@given(st.integers(TABLE_BELOW - 10, 1 << 19), st.integers(0, 2**64 - 1))
def test_any_n_is_permuted_exactly_under_any_key(n: int, key: int) -> None:
    assert is_bijection(n, key)


@pytest.mark.parametrize("n", HUGE)
def test_beyond_2_to_the_32_the_inverse_brings_every_position_back(n: int) -> None:
    perm = Permutation(n, key_of(1, n))
    inside = np.random.default_rng(n).integers(0, n, 3000)
    numbers = np.unique(np.concatenate([np.arange(1000), inside, np.arange(n - 1000, n)]))
    indices = perm.permute(numbers)
    assert indices.min() >= 0
    assert indices.max() < n
    assert len(np.unique(indices)) == len(numbers)
    assert np.array_equal(perm.invert(indices), numbers)
    assert np.array_equal(perm.permute(perm.invert(numbers)), numbers)


@settings(deadline=None)
@given(st.sampled_from([7, 300, TABLE_BELOW + 1, 10**6, 10**12]), st.data())
def test_an_index_does_not_depend_on_what_it_is_computed_with(n: int, data: st.DataObject) -> None:
    perm = Permutation(n, key_of(2, 3))
    length = min(n, BLOCK + 100)
    start = data.draw(st.integers(0, n - length))
    whole = perm.chunk(start, start + length)
    cut = data.draw(st.integers(0, length))
    assert np.array_equal(perm.chunk(start, start + cut), whole[:cut])
    assert np.array_equal(perm.chunk(start + cut, start + length), whole[cut:])
    place = data.draw(st.integers(0, length - 1))
    assert perm.permute(np.array([start + place])).tolist() == [whole[place]]


@pytest.mark.parametrize("n", [1000, 10**7])
def test_positions_of_any_shape_and_integer_type_give_int64_of_that_shape(n: int) -> None:
    perm = Permutation(n, 9)
    flat = perm.chunk(0, 12)
    for kind in (np.uint8, np.int32, np.uint64, np.int64):
        got = perm.permute(np.arange(12, dtype=kind).reshape(3, 4).T)
        assert got.dtype == np.int64
        assert np.array_equal(got, flat.reshape(3, 4).T)
    assert perm.permute(np.array(5)).tolist() == flat[5]
    assert perm.permute(np.array([], dtype=np.int64)).shape == (0,)


def test_the_input_is_left_as_it_was() -> None:
    positions = np.arange(100)
    Permutation(10**6, 1).permute(positions)
    assert np.array_equal(positions, np.arange(100))


@pytest.mark.parametrize("n", [100, 10**6])
@pytest.mark.parametrize("bad", [-1, 0])
def test_a_position_outside_is_refused(n: int, bad: int) -> None:
    outside = bad if bad < 0 else n
    for move in (Permutation(n, 1).permute, Permutation(n, 1).invert):
        with pytest.raises(IndexError, match=f"range\\({n}\\)"):
            move(np.array([0, outside]))
    with pytest.raises(IndexError):
        Permutation(n, 1).chunk(n - 1, n + 1)
    with pytest.raises(TypeError):
        Permutation(n, 1).permute(np.array([0.5]))


def test_an_empty_range_has_an_empty_order() -> None:
    assert Permutation(0, 1).chunk(0, 0).tolist() == []


def test_an_n_that_positions_could_not_count_is_refused() -> None:
    for n in (-1, MOST + 1):
        with pytest.raises(ValueError, match="0 <= n"):
            Permutation(n, 1)


# --- keys -------------------------------------------------------------------------------------------------------


def test_an_order_stays_what_it_is_in_every_version() -> None:
    """A state saved today must mean the same order tomorrow."""
    assert Permutation(10, key_of(0, 0)).chunk(0, 10).tolist() == [0, 1, 9, 4, 2, 3, 6, 8, 7, 5]
    assert Permutation(70_000, key_of(1, 2)).chunk(0, 4).tolist() == [48198, 20595, 53642, 25029]
    assert Permutation(10**9, key_of(3, 4)).chunk(10**9 - 3, 10**9).tolist() == [
        431503900,
        191921967,
        284041167,
    ]
    assert Permutation(10**15, key_of(5, 6)).chunk(0, 3).tolist() == [
        670235387213492,
        23745633933026,
        856332493709332,
    ]


def test_no_two_runs_and_epochs_share_a_key() -> None:
    keys = {key_of(seed, epoch) for seed in range(-100, 200) for epoch in range(300)}
    assert len(keys) == 300 * 300


@pytest.mark.parametrize("n", [1000, 100_000])
def test_runs_with_neighbouring_seeds_do_not_share_their_epochs(n: int) -> None:
    orders = {(s, e): Permutation(n, key_of(s, e)).chunk(0, n) for s in range(4) for e in range(4)}
    firsts = {tuple(order[:8].tolist()) for order in orders.values()}
    assert len(firsts) == len(orders)


# --- statistics -------------------------------------------------------------------------------------------------


def z_of(counts: np.ndarray, expected: np.ndarray | float, dof: int) -> float:
    return float((np.sum((counts - expected) ** 2 / expected) - dof) / np.sqrt(2 * dof))


def z_of_all_places(n: int, order: Order, orders: int = 2000) -> float:
    """Every (position, index) pair is a cell, over many orders."""
    counts = np.zeros((n, n))
    for which in range(orders):
        counts[np.arange(n), order(n, which)] += 1
    return z_of(counts, orders / n, (n - 1) ** 2)


def z_of_places(
    n: int, indices_at: Callable[[int], np.ndarray], orders: int = 2000, cells: int = 64
) -> float:
    """The index at a few positions, in cells, over many orders."""
    counts = np.zeros((len(indices_at(0)), cells))
    for which in range(orders):
        cell = (
            indices_at(which).astype(object) * cells // n
        )  # beyond 2^57 the product needs more than 64 bits
        counts[np.arange(len(cell)), cell.astype(np.int64)] += 1
    return z_of(counts, orders / cells, len(counts) * (cells - 1))


def z_of_regions(order: np.ndarray, cells: int = 64) -> float:
    """How many of each part of the order come from each part of the dataset."""
    n = len(order)
    counts = np.zeros((cells, cells))
    np.add.at(counts, (np.arange(n) * cells // n, order * cells // n), 1)
    part = np.bincount(np.arange(n) * cells // n, minlength=cells) / n
    return z_of(counts, np.outer(part, part) * n, (cells - 1) ** 2)


def z_of_differences(order: np.ndarray, lag: int, cells: int = 64) -> float:
    """Index less the index ``lag`` positions before, mod n: 1 to n - 1 alike."""
    n = len(order)
    differences = (order[lag:] - order[:-lag]) % n - 1
    width = np.bincount(np.arange(n - 1) * cells // (n - 1), minlength=cells) / (n - 1)
    counts = np.bincount(differences * cells // (n - 1), minlength=cells)
    return z_of(counts, width * len(differences), cells - 1)


def neighbours_kept(order: np.ndarray) -> int:
    """Successive positions with successive indices: 1 is expected, Poisson."""
    return int(np.sum(np.diff(order) == 1))


def fixed_points(order: np.ndarray) -> int:
    return int(np.sum(order == np.arange(len(order))))


def together_again(first: np.ndarray, second: np.ndarray, batch: int) -> int:
    """Pairs of samples that share a batch in both orders."""
    n = len(first)
    batch_of = np.empty((2, n), np.int64)
    for row, order in enumerate((first, second)):
        batch_of[row, order] = np.arange(n) // batch
    both = np.bincount(batch_of[0] * (n // batch + 1) + batch_of[1])
    return int(np.sum(both * (both - 1) // 2))


def z_of_poisson(counts: list[int], mean: float) -> float:
    return (sum(counts) - mean * len(counts)) / float(np.sqrt(mean * len(counts)))


@pytest.mark.parametrize("n", [2, 3, 5, 13, 64, 300])
@pytest.mark.parametrize("order", [keyed, true])
def test_small_orders_put_every_index_at_every_position_equally_often(n: int, order: Order) -> None:
    assert abs(z_of_all_places(n, order)) < Z


@pytest.mark.parametrize(
    "n", [TABLE_BELOW, TABLE_BELOW + 1, 2**20 + 1, 10**9, 2**32 + 1, 10**12, 2**50, MOST]
)
def test_large_orders_put_every_index_at_the_first_and_at_far_positions_equally_often(n: int) -> None:
    positions = np.unique([*range(32), *(n * part // 32 - 1 for part in range(1, 33))])
    assert abs(z_of_places(n, lambda which: Permutation(n, key_of(0, which)).permute(positions))) < Z


@pytest.mark.parametrize("n", [TABLE_BELOW - 1, TABLE_BELOW, TABLE_BELOW + 1, 2**17, 1_000_003])
@pytest.mark.parametrize("order", [keyed, true])
def test_every_part_of_an_order_comes_from_all_parts_of_the_dataset(n: int, order: Order) -> None:
    assert max(abs(z_of_regions(order(n, which))) for which in range(4)) < Z


@pytest.mark.parametrize("n", [TABLE_BELOW - 1, TABLE_BELOW, TABLE_BELOW + 1, 2**17, 1_000_003])
@pytest.mark.parametrize("order", [keyed, true])
def test_differences_of_indices_near_and_far_apart_are_uniform(n: int, order: Order) -> None:
    lags = [1, 2, 3, *(2**power for power in range(7, 13))]  # a digit's width is among them
    assert max(abs(z_of_differences(order(n, which), lag)) for which in range(3) for lag in lags) < Z


@pytest.mark.parametrize("n", [300, TABLE_BELOW - 1, TABLE_BELOW + 1])
@pytest.mark.parametrize("order", [keyed, true])
def test_fixed_points_and_kept_neighbours_are_as_rare_as_chance_makes_them(n: int, order: Order) -> None:
    orders = [order(n, which) for which in range(200)]
    for count in (fixed_points, neighbours_kept):
        counts = [count(each) for each in orders]
        assert abs(z_of_poisson(counts, 1.0)) < Z
        assert 0.5 < np.var(counts) < 1.5  # of 200 Poisson counts: 1 +- 0.1, so five times that


@pytest.mark.parametrize("n", [4096, 2**17])
@pytest.mark.parametrize("order", [keyed, true])
def test_samples_of_one_batch_meet_again_in_another_epoch_as_often_as_chance_has_it(
    n: int, order: Order
) -> None:
    batch = 64
    orders = [order(n, which) for which in range(16)]
    expected = n / batch * (batch * (batch - 1) / 2) * (batch - 1) / (n - 1)
    met = [together_again(first, second, batch) for first, second in pairwise(orders)]
    assert abs(z_of_poisson(met, expected)) < Z


def test_an_order_of_equal_steps_fails_these_tests() -> None:
    for n in (300, TABLE_BELOW + 1):
        order = affine(n, 1)
        assert abs(z_of_differences(order, 1, cells=16)) > Z
        assert neighbours_kept(order) in (0, n - 1)
    met = [together_again(affine(4096, which), affine(4096, which + 1), 64) for which in range(5)]
    assert abs(z_of_poisson(met, 1984.5)) > Z


def test_one_pair_of_rounds_fails_them_and_half_of_the_rounds_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation, "_PAIRS", 1)
    n = 2**17
    assert abs(z_of_regions(keyed(n, 0))) > 2 * Z
    assert abs(z_of_differences(keyed(n, 0), 1)) > 2 * Z
    monkeypatch.setattr(permutation, "_PAIRS", 2)
    assert abs(z_of_regions(keyed(n, 0))) < Z
    assert abs(z_of_differences(keyed(n, 0), 1)) < Z


# --- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [TABLE_BELOW - 1, 10**7, 10**12])
def test_memory_does_not_grow_with_n_or_with_what_was_generated(n: int) -> None:
    tracemalloc.start()
    try:
        perm = Permutation(n, 1)
        for start in range(0, min(n, 20 * BLOCK), BLOCK):
            perm.chunk(start, min(n, start + BLOCK))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 * BLOCK  # a list of ten million indices would be 400 MB

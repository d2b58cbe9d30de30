"""Who gets which position: against Accelerate's own sharding, by hand-drawn tables, and as laws of resuming."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

from shardlab.config import Tail
from shardlab.errors import UsageError
from shardlab.index.order import expected_index
from shardlab.index.partition import Partition

worlds = st.integers(1, 5)
batch_sizes = st.integers(1, 5)
tails = st.sampled_from(["pad", "drop", "keep"])


def batches(part: Partition, rank: int) -> list[list[int]]:
    each = [part.positions(rank, step, step + 1).tolist() for step in range(part.steps(rank))]
    assert part.positions(rank, part.steps(rank), part.steps(rank) + 1).tolist() == []
    return each


def everything(part: Partition) -> list[list[list[int]]]:
    return [batches(part, rank) for rank in range(part.world_size)]


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return [position for rank in ranks for batch in rank for position in batch]


def accelerate_batches(samples: int, world_size: int, batch_size: int, tail: Tail) -> list[list[list[int]]]:
    """What Accelerate gives each rank of the unshuffled order."""
    return [
        list(
            BatchSamplerShard(
                BatchSampler(range(samples), batch_size, drop_last=tail == "drop"),
                world_size,
                rank,
                even_batches=tail != "keep",
            )
        )
        for rank in range(world_size)
    ]


@settings(deadline=None, max_examples=400)
@given(st.integers(1, 60), worlds, batch_sizes, tails)
def test_every_rank_gets_the_batches_that_accelerate_gives_it(
    samples: int, world_size: int, batch_size: int, tail: Tail
) -> None:
    got = everything(Partition(samples, world_size, batch_size, tail))
    assert got == accelerate_batches(samples, world_size, batch_size, tail)


@pytest.mark.parametrize(
    ("tail", "rank_0", "rank_1"),
    [
        ("pad", [[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 0]]),
        ("drop", [[0, 1], [4, 5]], [[2, 3], [6, 7]]),
        ("keep", [[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]),
    ],
)
def test_eleven_samples_on_two_ranks_are_divided_as_drawn(
    tail: Tail, rank_0: list[list[int]], rank_1: list[list[int]]
) -> None:
    assert everything(Partition(11, 2, 2, tail)) == [rank_0, rank_1]


@pytest.mark.parametrize(
    ("tail", "delivered", "duplicates", "steps"),
    [("pad", 16, 6, [1, 1, 1, 1]), ("drop", 0, 0, [0, 0, 0, 0]), ("keep", 10, 0, [1, 1, 1, 0])],
)
def test_ten_samples_in_batches_of_four_on_four_ranks(
    tail: Tail, delivered: int, duplicates: int, steps: list[int]
) -> None:
    """The case of pytorch#25162."""
    part = Partition(10, 4, 4, tail)
    got = flat(everything(part))
    assert (len(got), len(got) - len(set(got))) == (delivered, duplicates)
    assert [part.steps(rank) for rank in range(4)] == steps


def test_fewer_samples_than_ranks_are_repeated_until_all_are_busy() -> None:
    assert everything(Partition(3, 4, 2)) == [[[0, 1]], [[2, 0]], [[1, 2]], [[0, 1]]]


@given(st.integers(0, 60), worlds, batch_sizes, tails, st.data())
def test_lengths_are_those_of_what_is_given(
    samples: int, world_size: int, batch_size: int, tail: Tail, data: st.DataObject
) -> None:
    part = Partition(samples, world_size, batch_size, tail, start=data.draw(st.integers(0, samples)))
    for rank, given_batches in enumerate(everything(part)):
        assert part.steps(rank) == len(given_batches)
        assert part.size(rank) == sum(map(len, given_batches))
        whole = part.positions(rank, 0, part.steps(rank) + 5)
        assert whole.dtype == np.int64
        assert whole.tolist() == [position for batch in given_batches for position in batch]
    sizes = {part.size(rank) for rank in range(world_size)}
    assert part.is_even == (len(sizes) == 1)


@given(st.integers(0, 60), worlds, batch_sizes, tails)
def test_each_tail_delivers_what_its_name_says(
    samples: int, world_size: int, batch_size: int, tail: Tail
) -> None:
    times = Counter(flat(everything(Partition(samples, world_size, batch_size, tail))))
    if tail == "keep":
        assert times == Counter(range(samples))
    elif tail == "drop":
        full = samples // (world_size * batch_size) * world_size * batch_size
        assert times == Counter(range(full))
    else:
        assert set(times) == set(range(samples))
        assert times.total() - samples < world_size * batch_size
        assert max(times.values(), default=0) - min(times.values(), default=0) <= 1


@given(st.integers(1, 60), worlds, batch_sizes)
def test_full_rounds_have_the_layout_that_the_audit_expects(
    samples: int, world_size: int, batch_size: int
) -> None:
    part = Partition(samples, world_size, batch_size, "drop")
    for rank in range(world_size):
        nth = np.arange(part.size(rank))
        step, place = np.divmod(nth, batch_size)
        due = expected_index(
            "batches", np.full_like(nth, rank), step, place,
            samples=samples, world_size=world_size, batch_size=batch_size,
        )  # fmt: skip
        assert part.positions(rank, 0, part.steps(rank)).tolist() == due.tolist()


@given(st.integers(0, 80), tails, st.lists(st.tuples(worlds, batch_sizes, st.integers(0, 4)), max_size=4))
def test_however_often_ranks_change_every_sample_comes_once(
    samples: int, tail: Tail, legs: list[tuple[int, int, int]]
) -> None:
    """Each leg runs some steps on its own ranks and batches; the last one runs to the end."""
    consumed, got = 0, []
    for world_size, batch_size, steps in [*legs, (3, 2, 1000)]:
        part = Partition(samples, world_size, batch_size, tail, start=consumed)
        for rank in range(world_size):
            got += part.positions(rank, 0, min(steps, part.steps(rank))).tolist()
        consumed = part.consumed(steps)
    assert consumed == samples
    if tail == "keep":
        assert sorted(got) == list(range(samples))
    if tail == "pad":
        assert set(got) == set(range(samples))
    if tail == "drop":
        assert len(got) == len(set(got))


def test_a_rest_is_divided_anew_and_padded_from_the_front_of_the_epoch() -> None:
    rest = Partition(11, 3, 1, start=4)
    assert everything(rest) == [[[4], [7], [10]], [[5], [8], [0]], [[6], [9], [1]]]


def test_positions_of_a_dataset_of_10_to_the_15_are_where_they_belong() -> None:
    part = Partition(10**15, 8, 32, start=10**15 - 300)
    assert part.positions(7, 0, 1).tolist() == list(range(10**15 - 76, 10**15 - 44))
    assert part.positions(1, 1, 2).tolist() == [*range(10**15 - 12, 10**15), *range(20)]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"samples": -1}, "samples must be at least 0"),
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"tail": "wrap"}, "choose from pad, drop, keep"),
        ({"start": 11}, "consumed must lie in"),
        ({"start": -1}, "consumed must lie in"),
    ],
)
def test_a_partition_that_cannot_be_is_refused_with_the_rule(change: dict[str, int], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        replace(Partition(10, 2, 2), **change)

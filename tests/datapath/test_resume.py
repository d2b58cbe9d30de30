"""Epochs that go on elsewhere: every remaining sample once, in the order that it had, on every path of our own.

A feed is what a training loop iterates, of whichever kind; its batches are lists of indices.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from ranks import each_rank, new_job
from shardlab import library
from shardlab.datapath import distributed, keyed, ring, sharded
from shardlab.datapath._ring_source import MapSource
from shardlab.engine import rank as engine
from shardlab.errors import UsageError
from shardlab.index.permutation import Permutation, key_of
from shardlab.plan import Plan
from shardlab.sampler import KeyedBatchSampler, KeyedSampler
from shardlab.shards.manifest import Manifest, ShardEntry
from shardlab.store import NoCounter, Store
from shardlab.world import World

PATHS = {"keyed": keyed, "ring": ring, "sharded": sharded, "distributed": distributed}
LOADERS = ["keyed", "ring", "sharded", "library keyed", "library ring"]
SAMPLERS = ["ints", "batches"]
STATEFUL = ["stateful ints", "stateful batches"]
OWN = LOADERS + SAMPLERS
RINGS = ["ring", "library ring"]
N, BATCH = 43, 4

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it


class Numbers(Dataset[int]):
    """Sample i is i. As a folder of shards it has seven or so; nothing of it is kept but what was ``asked``."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.asked.append(int(index))
        return int(index)

    @cached_property
    def manifest(self) -> Manifest:
        ends = [self.n * number // 7 for number in range(8)]
        sizes = [last - first for first, last in pairwise(ends)]
        shards = tuple(ShardEntry(f"{size}", size, size, "") for size in sizes)
        return Manifest(self.n, "tensor", (), shards)


@dataclass(frozen=True)
class Feed:
    """``source`` has batches, ``keeper`` a state, ``clock`` an epoch."""

    source: Any
    keeper: Any
    clock: Any
    indices: Callable[[Any], list[int]]

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.indices, iter(self.source))

    def close(self) -> None:
        if hasattr(self.source, "close"):
            self.source.close()


def second(pair: Any) -> list[int]:
    found: list[int] = pair[1].tolist()
    return found


def whole_batch(batch: Any) -> list[int]:
    found: list[int] = batch.tolist()
    return found


def made(
    kind: str, n: int, world: World, batch: int, *, tail: Any = "pad", workers: int = 0, **order: Any
) -> Feed:
    """The feed of a rank. ``order``: shuffle, seed."""
    data = Numbers(n)
    if kind in PATHS:
        plan = Plan(n, batch, tail=tail, workers=workers, **order)
        path = PATHS[kind].open(Store(data, NoCounter()), plan, world)  # type: ignore[attr-defined]
        return Feed(path, path, path, second)
    name = kind.split()[-1]
    if kind.startswith("library"):
        given = {"tail": tail, "uneven_ends": True, "workers": workers, **order}
        loader = library.loader(data, batch, sampler=name, **given)  # type: ignore[arg-type]
        return Feed(loader, loader, loader, whole_batch)
    given = {"num_replicas": world.world_size, "rank": world.rank, "uneven_ends": True, **order}
    by = StatefulDataLoader if kind.startswith("stateful") else DataLoader
    if name == "ints":
        sampler: Any = KeyedSampler(data, batch_size=batch, tail=tail, **given)
        source = by(data, batch, sampler=sampler, num_workers=workers)
    else:
        sampler = KeyedBatchSampler(data, batch_size=batch, tail=tail, **given)
        source = by(data, batch_sampler=sampler, num_workers=workers)
    return Feed(source, source if kind.startswith("stateful") else sampler, sampler, whole_batch)


def alone(kind: str, n: int, ranks: int, batch: int, **more: Any) -> list[Feed]:
    """The feeds of all ranks in this one process, each on a node of its own."""
    feeds = []
    for rank in range(ranks):
        world = World(rank, ranks, 0, 1)
        with (
            mock.patch.object(ring, "on_all", lambda size, act, _failed: [act()] * size),
            mock.patch.object(library, "current_world", lambda world=world: world),
        ):
            feeds.append(made(kind, n, world, batch, **more))
    return feeds


def step_by_step(iterators: list[Iterator[list[int]]], steps: int | None) -> list[list[list[int]]]:
    """What the ranks get, by step and rank, in ``steps`` steps or to the end. None is asked more than needed."""
    found: list[list[list[int]]] = []
    while steps is None or len(found) < steps:
        parts = [next(iterator, []) for iterator in iterators]
        if not any(parts):
            break
        found.append(parts)
    return found


def flat(steps: list[list[list[int]]]) -> list[int]:
    return [index for parts in steps for part in parts for index in part]


def as_json(state: dict[str, int]) -> dict[str, int]:
    loaded: dict[str, int] = json.loads(json.dumps(state))
    return loaded


def all_of(kind: str, n: int, ranks: int, batch: int, epoch: int, **more: Any) -> list[int]:
    """The global order of an epoch that nobody interrupts, each sample once."""
    feeds = alone(kind, n, ranks, batch, tail="keep", **more)
    for feed in feeds:
        feed.clock.set_epoch(epoch)
    found = flat(step_by_step([iter(feed) for feed in feeds], None))
    for feed in feeds:
        feed.close()
    return found


# The order goes on


@dataclass(frozen=True)
class Stage:
    """So many ranks with batches of ``batch`` take ``steps`` steps, or all that are left."""

    ranks: int
    batch: int
    steps: int | None

    @property
    def round(self) -> int:
        return self.ranks * self.batch


def is_even_in_pieces(kind: str) -> bool:
    """`sharded` deals the last round out evenly, the others batch by batch."""
    return kind == "sharded"


def remaining(kind: str, tail: str, stage: Stage, left: list[int], got: Any, whole: list[int]) -> list[int]:
    """Check what a stage got of what was left; returns what is left after it."""
    full = len(left) // stage.round
    if stage.steps is not None and stage.steps <= full:
        assert flat(got) == left[: stage.steps * stage.round]
        assert len(got) == stage.steps
        rest = left[stage.steps * stage.round :]
        can_go_on = tail != "drop" or (is_even_in_pieces(kind) and len(rest) >= stage.ranks)
        return rest if not stage.steps or (rest and can_go_on) or len(rest) >= stage.round else []
    assert flat(got[:full]) == left[: full * stage.round]
    rest, last = left[full * stage.round :], flat(got[full:])
    if tail == "keep":
        assert last == rest
    elif is_even_in_pieces(kind):
        assert set(last) >= set(rest) if tail == "pad" else set(last) <= set(rest)
        assert len(set(last) & set(rest)) == min(len(last), len(rest))
        assert abs(len(last) - len(rest)) < stage.ranks
        assert set(last) <= set(whole)
    elif tail == "pad":
        assert last == (rest + whole * stage.round)[: stage.round if rest else 0]
    else:
        assert last == []
    return []


def check_stages(kind: str, n: int, tail: str, stages: list[Stage], epoch: int, shuffle: bool) -> None:
    began = next(stage for stage in stages if stage.steps != 0)  # on its ranks `sharded` makes parts
    whole = all_of(kind, n, began.ranks, began.batch, epoch, shuffle=shuffle)
    assert sorted(whole) == list(range(n))
    left, state = whole, None
    for stage in stages:
        feeds = alone(kind, n, stage.ranks, stage.batch, tail=tail, shuffle=shuffle)
        for feed in feeds:
            if state is not None:
                feed.keeper.load_state_dict(state if kind in STATEFUL else as_json(state))
            feed.clock.set_epoch(epoch)
        iterators = [iter(feed) for feed in feeds] if stage.steps != 0 else []
        got = step_by_step(iterators, stage.steps)
        left = remaining(kind, tail, stage, left, got, whole)
        states = [feed.keeper.state_dict() for feed in feeds]
        if kind not in STATEFUL:
            assert states == [states[0]] * stage.ranks
            assert states[0]["consumed"] == n - len(left)
        state = states[0]
        for feed in feeds:
            feed.close()
        if kind in STATEFUL and not left:
            return  # torchdata begins another epoch where the loop over this one had ended


STAGES = st.lists(
    st.builds(Stage, st.integers(1, 5), st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=3
)
FOUR_TWO_THREE = [Stage(4, 4, 1), Stage(2, 4, 1), Stage(3, 4, None)]
OTHER_BATCHES = [Stage(4, 2, 2), Stage(2, 5, 1), Stage(3, 3, None)]


def law(kind: str, examples: int) -> Any:
    @settings(max_examples=examples, deadline=None)
    @given(
        n=st.integers(1, 90),
        tail=st.sampled_from(["pad", "drop", "keep"]),
        stages=STAGES,
        last=st.builds(Stage, st.integers(1, 5), st.integers(1, 5), st.none()),
        epoch=st.integers(0, 3),
        shuffle=st.booleans(),
    )
    @example(N, "pad", FOUR_TWO_THREE[:2], FOUR_TWO_THREE[2], 1, True)
    @example(N, "keep", FOUR_TWO_THREE[:2], FOUR_TWO_THREE[2], 0, True)
    @example(89, "drop", OTHER_BATCHES[:2], OTHER_BATCHES[2], 2, True)
    @example(8, "pad", [Stage(4, 2, 1), Stage(2, 2, 0)], Stage(3, 2, None), 0, True)  # over after one step
    @example(3, "keep", [Stage(5, 1, 1)], Stage(2, 1, None), 0, False)  # ranks without any batch
    def check(n: int, tail: str, stages: list[Stage], last: Stage, epoch: int, shuffle: bool) -> None:
        check_stages(kind, n, tail, [*stages, last], epoch, shuffle)

    return check


@pytest.mark.parametrize("kind", ["keyed", "sharded", "library keyed", *SAMPLERS, *STATEFUL])
def test_an_epoch_goes_on_in_its_order_on_any_ranks_with_any_batch(kind: str) -> None:
    law(kind, 100)()


@pytest.mark.parametrize("kind", RINGS)
def test_an_epoch_goes_on_in_its_order_through_rings_too(kind: str) -> None:
    law(kind, 4)()  # each rank of each stage has a reader process


# Real ranks


def stage_of_rank(
    world: World, inherited: Any, job: Any, states: dict[str, Any], stage: Stage, workers: int
) -> dict[str, tuple[list[list[int]], Any]]:
    """What this rank gets of each kind of feed, and the state then."""
    found = {}
    with engine.process_group(job, world):
        for kind in [*OWN, *STATEFUL]:
            # A plain sampler's state counts what workers have fetched ahead; one of torchdata's fits as many
            # workers as it was taken with.
            feed = made(kind, N, world, stage.batch, workers=workers if kind in SAMPLERS else 2)
            if kind in states:
                feed.keeper.load_state_dict(states[kind])
            feed.clock.set_epoch(1)
            batches = [parts[0] for parts in step_by_step([iter(feed)], stage.steps)]
            found[kind] = batches, feed.keeper.state_dict()
            feed.close()
    return found


def run_stages(folder: Path, stages: list[tuple[Stage, int]]) -> dict[str, list[list[list[list[int]]]]]:
    """By kind: what each stage got, step by step and rank by rank."""
    found: dict[str, Any] = {kind: [] for kind in [*OWN, *STATEFUL]}
    states: dict[str, Any] = {}
    for number, (stage, workers) in enumerate(stages):
        job = new_job(folder / str(number), dataset="synthetic:n=8:3", nproc=stage.ranks)
        answers = each_rank(stage_of_rank, job, job, states, stage, workers)
        for kind, stages_of_kind in found.items():
            by_rank = [answer[kind][0] for answer in answers]
            stages_of_kind.append([list(parts) for parts in zip(*by_rank, strict=True)])
            states[kind] = answers[-1][kind][1]
            if kind not in STATEFUL:
                states[kind] = as_json(states[kind])
    return found


def test_of_43_samples_one_step_on_four_ranks_leaves_27_which_three_ranks_finish(tmp_path: Path) -> None:
    got = run_stages(tmp_path, [(Stage(4, 4, 1), 0), (Stage(3, 4, None), 2)])
    for kind, (first, rest) in got.items():
        whole = all_of(kind, N, 4, 4, 1)
        assert flat(first) == whole[:16], kind
        assert len(whole[16:]) == 27
        assert flat(rest[:2]) == whole[16:40], kind
        assert set(flat(rest[2:])) >= set(whole[40:]), kind
        assert len(rest) == 3
        padded = 3 if is_even_in_pieces(kind) else 12
        assert len(flat(rest[2:])) == padded, kind


def test_four_ranks_then_two_then_three_with_two_workers_each_and_other_batches(tmp_path: Path) -> None:
    got = run_stages(tmp_path, [(Stage(4, 2, 1), 0), (Stage(2, 5, 2), 0), (Stage(3, 1, None), 2)])
    for kind, (first, second_stage, rest) in got.items():
        whole = all_of(kind, N, 4, 2, 1)
        assert flat(first) + flat(second_stage) == whole[:28], kind
        assert flat(rest) == whole[28:], kind  # 15 samples, five rounds of three


# The rule of set_epoch


@pytest.fixture(params=[*OWN, "distributed"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def orders(kind: str) -> dict[int, list[int]]:
    """The whole of epochs 2 and 3 as one rank gets them: eleven batches, the last one padded."""
    found = {}
    for epoch in (2, 3):
        (feed,) = alone(kind, N, 1, BATCH)
        feed.clock.set_epoch(epoch)
        found[epoch] = drained(feed)
        feed.close()
    assert found[2] != found[3]
    return found


@pytest.fixture
def resumed(kind: str) -> Iterator[Feed]:
    """A new feed that has loaded a state from epoch 2, after five batches."""
    (old,) = alone(kind, N, 1, BATCH)
    old.clock.set_epoch(2)
    iterator = iter(old)
    for _ in range(5):
        next(iterator)
    (new,) = alone(kind, N, 1, BATCH)
    new.keeper.load_state_dict(as_json(old.keeper.state_dict()))
    del iterator
    old.close()
    yield new
    new.close()


def drained(feed: Feed) -> list[int]:
    return [index for batch in feed for index in batch]


def test_the_loaded_epoch_goes_on_whether_it_is_chosen_or_not(resumed: Feed, orders: Any) -> None:
    state = resumed.keeper.state_dict()
    assert drained(resumed) == orders[2][20:]
    resumed.keeper.load_state_dict(state)
    resumed.clock.set_epoch(2)
    resumed.clock.set_epoch(2)
    assert resumed.keeper.state_dict() == state
    assert drained(resumed) == orders[2][20:]


def test_another_epoch_begins_at_its_front(resumed: Feed, orders: Any) -> None:
    resumed.clock.set_epoch(3)
    assert drained(resumed) == orders[3]


def test_the_loaded_epoch_chosen_after_another_begins_at_its_front(resumed: Feed, orders: Any) -> None:
    resumed.clock.set_epoch(3)
    resumed.clock.set_epoch(2)
    assert drained(resumed) == orders[2]


def test_an_iterator_that_gave_nothing_has_not_used_the_place_up(resumed: Feed, orders: Any) -> None:
    unread = iter(resumed)
    state = resumed.keeper.state_dict()
    resumed.clock.set_epoch(2)
    assert resumed.keeper.state_dict() == state
    del unread
    assert drained(resumed) == orders[2][20:]


@pytest.mark.parametrize("batches", [1, 3])
def test_once_a_batch_was_taken_the_chosen_epoch_begins_at_its_front(
    batches: int, resumed: Feed, orders: Any
) -> None:
    iterator = iter(resumed)
    got = [next(iterator) for _ in range(batches)]
    assert list(chain(*got)) == orders[2][20 : 20 + 4 * batches]
    resumed.clock.set_epoch(2)
    del iterator
    assert drained(resumed) == orders[2]


def test_the_second_iteration_of_a_resumed_epoch_is_whole_and_so_is_the_next_epoch(
    resumed: Feed, orders: Any
) -> None:
    assert drained(resumed) == orders[2][20:]
    resumed.clock.set_epoch(2)
    assert drained(resumed) == orders[2]
    resumed.clock.set_epoch(3)
    assert drained(resumed) == orders[3]


@pytest.mark.parametrize("kind", OWN, indirect=True)
def test_without_set_epoch_too_the_second_iteration_is_whole(resumed: Feed, orders: Any) -> None:
    assert drained(resumed) == orders[2][20:]
    assert drained(resumed) == orders[2]


@pytest.mark.parametrize("kind", OWN, indirect=True)
def test_a_state_is_of_the_iteration_that_gave_the_last_batch_or_of_what_was_chosen_since(
    resumed: Feed,
) -> None:
    def place() -> tuple[int, int]:
        state = resumed.keeper.state_dict()
        return state["epoch"], state["consumed"]

    assert place() == (2, 20)
    iterator = iter(resumed)
    next(iterator)
    assert place() == (2, 24)
    resumed.clock.set_epoch(2)
    assert place() == (2, 0)
    next(iterator)  # it goes on all the same
    assert place() == (2, 28)
    assert len(list(iterator)) == 4
    assert place() == (2, N)
    resumed.clock.set_epoch(3)
    assert place() == (3, 0)


@pytest.mark.parametrize("kind", LOADERS, indirect=True)
def test_a_length_is_that_of_the_epoch_under_way_and_then_of_the_next(resumed: Feed) -> None:
    assert len(resumed.source) == 6
    iterator = iter(resumed)
    next(iterator)
    assert len(resumed.source) == 6
    assert len(list(iterator)) == 5
    assert len(resumed.source) == 11
    resumed.clock.set_epoch(3)
    assert len(resumed.source) == 11


def finished(kind: str) -> Feed:
    """A new feed that has loaded a state from the end of epoch 2."""
    (old,) = alone(kind, N, 1, BATCH)
    old.clock.set_epoch(2)
    drained(old)
    (new,) = alone(kind, N, 1, BATCH)
    new.keeper.load_state_dict(as_json(old.keeper.state_dict()))
    old.close()
    return new


def test_an_epoch_that_was_over_gives_nothing_once_and_others_are_whole(kind: str, orders: Any) -> None:
    feed = finished(kind)
    feed.clock.set_epoch(2)
    assert drained(feed) == []
    feed.clock.set_epoch(2)
    assert drained(feed) == orders[2]
    feed.close()
    feed = finished(kind)
    feed.clock.set_epoch(3)
    assert drained(feed) == orders[3]
    feed.clock.set_epoch(2)
    assert drained(feed) == orders[2]
    feed.close()


@pytest.mark.parametrize("kind", OWN, indirect=True)
def test_an_epoch_that_was_over_is_over_unless_one_is_chosen(kind: str, orders: Any) -> None:
    feed = finished(kind)
    assert drained(feed) == (orders[3] if kind in SAMPLERS else [])  # samplers go on with the next epoch
    feed.close()


@pytest.mark.parametrize("kind", STATEFUL)
def test_under_a_stateful_loader_the_epoch_of_its_state_holds(kind: str) -> None:
    (old,) = alone(kind, N, 1, BATCH)
    old.clock.set_epoch(2)
    iterator = iter(old)
    had = [next(iterator) for _ in range(5)]
    (new,) = alone(kind, N, 1, BATCH)
    new.keeper.load_state_dict(old.keeper.state_dict())
    new.clock.set_epoch(3)
    got = [*chain(*had), *drained(new)]
    (due,) = alone(kind, N, 1, BATCH)
    due.clock.set_epoch(2)
    assert got == drained(due) == drained(new)


# What a state is


def test_a_state_is_a_few_integers(kind: str) -> None:
    (feed,) = alone(kind, N, 1, BATCH)
    next(iter(feed))
    state = feed.keeper.state_dict()
    assert len(state) < 10
    assert {type(value) for value in state.values()} == {int}
    assert as_json(state) == state
    feed.close()


@pytest.mark.parametrize("kind", OWN, indirect=True)
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("samples", {"n": N + 1}, "but got 43; choose from 44"),
        ("seed", {"seed": 5}, "but got 0; choose from 5"),
        ("tail", {"tail": "keep"}, "but got 'pad'; choose from keep"),
        ("shuffle", {"shuffle": False}, "but got 1; choose from 0"),
    ],
)
def test_a_state_of_another_order_is_refused_with_both_values(
    kind: str, name: str, change: dict[str, Any], said: str, resumed: Feed
) -> None:
    (other,) = alone(kind, **{"n": N, "ranks": 1, "batch": BATCH, **change})
    before = other.keeper.state_dict()
    with pytest.raises(UsageError, match=f"the {name} of the state must be that of the run, {said}"):
        other.keeper.load_state_dict(resumed.keeper.state_dict())
    assert other.keeper.state_dict() == before
    other.close()


@pytest.mark.parametrize("kind", OWN, indirect=True)
def test_what_is_no_state_of_such_a_feed_is_refused(kind: str, resumed: Feed) -> None:
    state = resumed.keeper.state_dict()
    foreign = state | {"step": 5}
    lacking = {name: value for name, value in state.items() if name != "consumed"}
    for wrong in (foreign, lacking, state | {"epoch": "2"}, state | {"consumed": 20.0}):
        with pytest.raises(UsageError, match="must be made of the integers epoch, consumed"):
            resumed.keeper.load_state_dict(wrong)
    for place in (-1, N + 1):
        with pytest.raises(UsageError, match=rf"consumed must lie in \[0, {N}\], but got {place}"):
            resumed.keeper.load_state_dict(state | {"consumed": place})
    assert resumed.keeper.state_dict() == state


def test_a_state_of_sharded_is_not_one_of_keyed_whose_order_is_another() -> None:
    (by_shards,), (by_key,) = alone("sharded", N, 1, BATCH), alone("keyed", N, 1, BATCH)
    for one, other in ((by_shards, by_key), (by_key, by_shards)):
        with pytest.raises(UsageError, match="load what state_dict"):
            one.keeper.load_state_dict(other.keeper.state_dict())


@pytest.mark.parametrize("name", ["parts", "batch_size"])
def test_parts_that_cannot_be_are_refused(name: str) -> None:
    (feed,) = alone("sharded", N, 1, BATCH)
    with pytest.raises(UsageError, match=f"the {name} of the state must be at least 1, but got 0"):
        feed.keeper.load_state_dict(feed.keeper.state_dict() | {name: 0})


# Resuming is arithmetic


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many positions of permutations were asked for, call by call."""
    asked: list[int] = []
    permute, chunk = Permutation.permute, Permutation.chunk

    def counting_permute(self: Permutation, positions: Any) -> Any:
        asked.append(np.size(positions))
        return permute(self, positions)

    def counting_chunk(self: Permutation, start: int, stop: int) -> Any:
        asked.append(stop - start)
        return chunk(self, start, stop)

    monkeypatch.setattr(Permutation, "permute", counting_permute)
    monkeypatch.setattr(Permutation, "chunk", counting_chunk)
    return asked


def first_batch(kind: str, n: int, consumed: int) -> list[int]:
    """Of rank 1 of 3, after loading a place in epoch 2."""
    if kind == "ring":  # what a reader process does
        data = Numbers(n)
        source = MapSource(Store(data, NoCounter()), Plan(n, BATCH), World(1, 3, 0, 1))
        source.begin(2, consumed, 0)
        source.fill(0, 0, np.zeros(1 << 16, np.uint8))
        return data.asked
    feed = alone(kind, n, 3, BATCH)[1]
    state = feed.keeper.state_dict()
    feed.keeper.load_state_dict(state | {"epoch": 2, "consumed": consumed})
    feed.clock.set_epoch(2)
    return next(iter(feed))


@pytest.mark.parametrize("kind", ["keyed", "ring", "sharded", "library keyed", *SAMPLERS])
def test_resuming_computes_no_more_than_beginning_and_makes_no_list(kind: str, evaluated: list[int]) -> None:
    n = 10**12
    counts = []
    for consumed in (0, n // 3, n - 10**6):
        evaluated.clear()
        tracemalloc.start()
        try:
            got = first_batch(kind, n, consumed)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 8 << 20
        counts.append(sum(evaluated))
        if kind == "sharded":
            assert len(set(got)) == BATCH
        else:
            places = np.arange(consumed + BATCH, consumed + 2 * BATCH)
            assert got == Permutation(n, key_of(0, 2)).permute(places).tolist()
    assert 0 < max(counts) < 1 << 17
    assert max(counts) <= 2 * counts[0]

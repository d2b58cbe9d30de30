"""The sharded path: parts of uneven shards, how well a window mixes, and an epoch that goes on on other ranks."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import by_hand
from ranks import RanksFailed, each_rank, new_job, run
from shardlab import show
from shardlab.datapath import sharded
from shardlab.datapath._shard_order import EpochOrder, Part, Rounds, mixing
from shardlab.dataset import DatasetSpec, open_dataset
from shardlab.engine import rank as engine
from shardlab.engine.source import open_store
from shardlab.errors import UsageError
from shardlab.plan import Plan
from shardlab.shards import writer
from shardlab.shards.reader import ShardedArrays
from shardlab.store import NoCounter, Store
from shardlab.world import World

TAILS = st.sampled_from(["pad", "drop", "keep"])
KEYS = st.one_of(st.none(), st.integers(0, 2**64 - 1))


@st.composite
def shards(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Ends of shards of any sizes, empty ones too."""
    return np.cumsum(draw(st.lists(st.integers(0, 13), min_size=1, max_size=8)), dtype=np.int64)


def dealt(order: EpochOrder, deal: Rounds, tail: str, steps: int | None = None) -> list[list[list[int]]]:
    """By rank, step and place."""
    ranks = range(deal.ranks)
    return [[batch.tolist() for batch in order.batches(deal, rank, tail, steps)] for rank in ranks]


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return [index for steps in ranks for batch in steps for index in batch]


# Parts


@given(shards(), st.integers(1, 6), st.integers(1, 5), TAILS, KEYS)
def test_parts_are_contiguous_and_exact_whatever_the_shards(
    ends: Any, world: int, batch: int, tail: str, key: int | None
) -> None:
    n = int(ends[-1])
    deal = Rounds(n, world, batch)
    ranks = dealt(EpochOrder(deal, ends, key), deal, tail)
    for rank, steps in enumerate(ranks):
        got = [index for one in steps for index in one]
        own = list(range(n * rank // world, n * (rank + 1) // world))
        size = {"pad": math.ceil(n / world), "drop": n // world, "keep": len(own)}[tail]
        assert len(got) == size
        assert [len(one) for one in steps[:-1]] == [batch] * (len(steps) - 1)
        assert len(steps) == deal.steps(rank, tail)
        new = got[: len(own)]  # repeats lie at the end
        assert len(set(new)) == len(new)
        if own:
            assert set(got) <= set(own)
        if tail != "drop":
            assert set(own) <= set(got)
        if key is None:
            assert new == own[: len(new)]
    if tail != "keep":
        assert len({len(steps) for steps in ranks}) == 1


@given(shards(), st.integers(1, 5), st.integers(1, 5), TAILS, KEYS, st.data())
def test_an_epoch_goes_on_on_other_ranks_and_batches_with_every_sample_once(
    ends: Any, world: int, batch: int, tail: str, key: int | None, data: st.DataObject
) -> None:
    n = int(ends[-1])
    order = EpochOrder(Rounds(n, world, batch), ends, key)
    got: list[int] = []
    start = 0
    for _ in range(data.draw(st.integers(1, 3), "stops")):
        deal = Rounds(n, world, batch, start)
        steps = data.draw(st.integers(0, deal.full))
        got += flat(dealt(order, deal, tail, steps))
        start = deal.start + steps * deal.round_size
        if steps:
            assert deal.consumed(steps, tail) in (start, n)
        world, batch = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    last = Rounds(n, world, batch, start)
    rest = flat(dealt(order, last, tail))
    assert len(set(got)) == len(got) == start
    if tail == "keep":
        assert sorted(got + rest) == list(range(n))
    if tail == "pad":
        assert set(got + rest) == set(range(n))
        assert len(got + rest) - n < world
    if tail == "drop":
        assert len(set(got + rest)) == len(got + rest)
        assert n - len(got + rest) < world


@given(shards(), st.integers(1, 5), st.integers(1, 5), TAILS, KEYS, st.data())
def test_the_same_ranks_go_on_with_the_very_batches_that_were_left(
    ends: Any, world: int, batch: int, tail: str, key: int | None, data: st.DataObject
) -> None:
    n = int(ends[-1])
    whole = Rounds(n, world, batch)
    order = EpochOrder(whole, ends, key)
    steps = data.draw(st.integers(0, whole.full))
    rest = dealt(order, Rounds(n, world, batch, steps * whole.round_size), tail)
    assert rest == [of_rank[steps:] for of_rank in dealt(order, whole, tail)]


@given(shards(), st.integers(1, 5), st.integers(1, 5), KEYS)
def test_the_global_order_takes_a_batch_of_each_part_in_turn(
    ends: Any, world: int, batch: int, key: int | None
) -> None:
    n = int(ends[-1])
    deal = Rounds(n, world, batch)
    order = EpochOrder(deal, ends, key)
    ranks = dealt(order, deal, "keep")
    turns = [ranks[r][s] for s in range(max(map(len, ranks))) for r in range(world) if s < len(ranks[r])]
    assert order.take(np.arange(n)).tolist() == [index for one in turns for index in one]


# Shuffling


def test_shards_come_in_another_order_in_each_epoch_and_samples_stay_within_their_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shardlab.datapath._shard_order.WINDOW_SAMPLES", 1)
    ends = np.arange(100, 4001, 100)  # forty shards of a hundred, windows of four of them
    first, second = (Part(0, 4000, ends, key).take(np.arange(4000)) for key in (1, 2))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(4000))
    for order in (first, second):
        windows = [set((order[start : start + 400] // 100).tolist()) for start in range(0, 4000, 400)]
        assert [len(window) for window in windows] == [4] * 10
        assert len(set().union(*windows)) == 40
    assert (first != second).mean() > 0.9
    assert set((first[:400] // 100).tolist()) != set((second[:400] // 100).tolist())


def test_samples_are_looked_up_in_any_order_and_number() -> None:
    ends = np.cumsum([3, 0, 70_000, 5, 40_000])
    part = Part(2, 110_000, ends, key=7)
    whole = part.take(np.arange(109_998))
    rng = np.random.default_rng(0)
    for size in (1, 10, 5000):
        places = rng.integers(0, 109_998, size)
        assert np.array_equal(part.take(places), whole[places])
    assert np.array_equal(np.sort(whole), np.arange(2, 110_000))


def test_within_a_window_the_mixing_is_that_of_a_perfect_shuffle() -> None:
    ends = np.arange(500, 10_001, 500)  # twenty shards, all of them in one window
    deal = Rounds(10_000, 1, 32)
    found = mixing(list(EpochOrder(deal, ends, 3).batches(deal, 0, "drop")), ends)
    assert found is not None
    assert found.ideal_distinct == pytest.approx(20 * (1 - (1 - 1 / 20) ** 32), rel=0.01)
    assert found.distinct == pytest.approx(found.ideal_distinct, rel=0.02)
    assert found.same == pytest.approx(1 / 20, abs=0.01)
    assert found.ideal_same == pytest.approx(499 / 9999, rel=0.01)


def test_an_unshuffled_order_is_seen_to_mix_nothing() -> None:
    ends = np.arange(100, 1001, 100)
    batches = [np.arange(start, start + 50) for start in range(0, 1000, 50)]
    found = mixing(batches, ends)
    assert found is not None
    assert (found.shards, found.distinct) == (10, 1.0)
    assert found.same == pytest.approx(990 / 999)


def test_mixing_counts_by_hand() -> None:
    ends = np.array([4, 8])
    found = mixing([np.array([0, 1, 4, 5]), np.array([0, 4, 1, 5]), np.array([2])], ends)
    assert found is not None
    assert found.distinct == 2.0
    assert found.same == pytest.approx(2 / 7)


# The loader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Thirty-seven samples in shards of ten, ten, ten and seven."""
    made = str(tmp_path_factory.mktemp("shards") / "37")
    writer.write(open_dataset(DatasetSpec("synthetic:n=37:7")), made, samples_per_shard=10)
    return made


def loader(folder: str, rank: int, world: int, batch: int = 4, **given: Any) -> sharded.ShardedLoader:
    dataset = ShardedArrays(folder)
    plan = Plan(samples=len(dataset), batch_size=batch, **given)
    return sharded.open(Store(dataset, NoCounter()), plan, World(rank, world, rank, world))


def indices(batches: Any) -> list[list[int]]:
    return [index.tolist() for _, index in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_three_ranks_stop_and_five_go_on_and_then_two(folder: str, shuffle: bool, workers: int) -> None:
    got: list[int] = []
    state: dict[str, int] | None = None
    for world, batch, steps in ((3, 4, 2), (5, 1, 1), (2, 3, None)):
        states = []
        for rank in range(world):
            one = loader(folder, rank, world, batch, shuffle=shuffle, workers=workers, tail="keep")
            if state is None:
                one.set_epoch(3)
            else:
                one.load_state_dict(json.loads(json.dumps(state)))
                one.set_epoch(3)  # as a training loop does at the head of each epoch
            batches = iter(one)
            for number in range(len(one)):
                if number == steps:
                    break
                got += next(batches)[1].tolist()
            states.append(one.state_dict())
            one.close()
        if steps is not None:
            assert all(other == states[0] for other in states)
        state = states[0]
    assert sorted(got) == list(range(37))


def test_a_state_is_a_few_integers(folder: str) -> None:
    state = loader(folder, 0, 3).state_dict()
    assert len(state) < 10
    assert {type(value) for value in state.values()} == {int}


def test_an_epoch_that_was_left_unread_has_parts_of_the_new_ranks(folder: str) -> None:
    state = loader(folder, 0, 3, shuffle=False).state_dict()
    one = loader(folder, 0, 2, shuffle=False)
    one.load_state_dict(state)
    assert [index for step in indices(one) for index in step] == [*range(18), 0]


def test_the_epoch_after_one_that_was_resumed_is_whole(folder: str) -> None:
    before = loader(folder, 0, 3, shuffle=False, tail="keep")
    next(iter(before))
    one = loader(folder, 1, 2, shuffle=False, tail="keep")
    one.load_state_dict(before.state_dict())
    assert sum(map(len, indices(one))) in (12, 13)
    one.set_epoch(1)
    assert [index for step in indices(one) for index in step] == list(range(18, 37))


@pytest.mark.parametrize(
    ("name", "change"),
    [("seed", {"seed": 1}), ("shuffle", {"shuffle": False}), ("samples", {}), ("shards", {})],
)
def test_a_state_of_another_order_is_refused(
    folder: str, tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    state = loader(folder, 0, 3).state_dict()
    other = folder
    if not change:
        other, n = str(tmp_path / "other"), 38 if name == "samples" else 37
        writer.write(open_dataset(DatasetSpec(f"synthetic:n={n}:7")), other, samples_per_shard=9)
    with pytest.raises(UsageError, match=name):
        loader(other, 0, 3, **change).load_state_dict(state)


def test_a_place_outside_the_epoch_is_refused(folder: str) -> None:
    one = loader(folder, 0, 3)
    with pytest.raises(UsageError, match="consumed"):
        one.load_state_dict(one.state_dict() | {"consumed": 38})


def test_a_dataset_that_is_no_folder_of_shards_is_refused_with_the_cure() -> None:
    dataset = open_dataset(DatasetSpec("synthetic:n=5:7"))
    with pytest.raises(UsageError, match=r"python -m shardlab\.shard"):
        sharded.open(Store(dataset, NoCounter()), Plan(samples=5, batch_size=2), World(0, 1, 0, 1))


def test_the_batches_hold_the_samples_of_their_indices(folder: str) -> None:
    right = torch.stack(list(open_dataset(DatasetSpec("synthetic:n=37:7"))))  # type: ignore[call-overload]
    for batch, index in loader(folder, 1, 3, workers=1):
        assert torch.equal(batch, right[index])


# Real ranks


def test_each_rank_says_how_many_bytes_of_shards_it_opened(folder: str, tmp_path: Path) -> None:
    ran = run(tmp_path, sampler="sharded", dataset=folder, nproc=3, batch_size=4)
    size = [os.path.getsize(Path(folder) / f"shard-{number:05d}.safetensors") for number in range(4)]
    # Parts are 0-11, 12-23 and 24-36: shard 1 is opened by two ranks, and so is shard 2.
    assert [report.held_bytes for report in ran.reports] == [
        size[0] + size[1], size[1] + size[2], size[2] + size[3]
    ]  # fmt: skip


def test_the_notes_say_how_well_the_order_mixes(folder: str, tmp_path: Path) -> None:
    ran = run(tmp_path, sampler="sharded", dataset=folder, nproc=3, batch_size=4)
    assert [len(report.notes) for report in ran.reports] == [1, 1, 1]
    assert "2 shards of a rank" in ran.reports[0].notes[0]
    plain = run(tmp_path / "plain", sampler="sharded", dataset=folder, nproc=3, batch_size=4, shuffle=False)
    assert [report.notes for report in plain.reports] == [(), (), ()]


def test_the_screen_shows_the_notes_once_and_the_bytes_of_each_rank() -> None:
    reports = [
        replace(by_hand.report(rank), notes=("mixed well",), held_bytes=held << 20)
        for rank, held in enumerate((3, 5))
    ]
    assert show.notes(by_hand.outcome(reports=reports)) == [
        "mixed well", "Bytes held, of shards opened: rank 0 3.0 MiB, rank 1 5.0 MiB."
    ]  # fmt: skip
    assert show.notes(by_hand.outcome(reports=[by_hand.report(0)])) == []


def opened_by(world: World, inherited: Any, job: Any) -> list[str]:
    with engine.process_group(job, world):
        store = open_store(job, world, inherited)
        for _ in engine.open_path(job)(store, Plan.of(job.config, 37), world):
            pass
        maps = Path("/proc/self/maps").read_text().split()
        return sorted({word[-17:-12] for word in maps if word.endswith(".safetensors")})


def test_a_rank_maps_the_shards_of_its_part_and_no_others(folder: str, tmp_path: Path) -> None:
    job = new_job(tmp_path / "run", sampler="sharded", dataset=folder, nproc=3, batch_size=4)
    assert each_rank(opened_by, job, job) == [
        ["00000", "00001"], ["00001", "00002"], ["00002", "00003"]
    ]  # fmt: skip


def damaged(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def replaced(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [damaged, replaced, Path.unlink])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_shard_is_named_by_the_rank_that_reads_it(tmp_path: Path, damage: Any, workers: int) -> None:
    made = tmp_path / "shards"
    writer.write(open_dataset(DatasetSpec("synthetic:n=37:7")), made, samples_per_shard=10)
    job = new_job(
        tmp_path / "run", sampler="sharded", dataset=str(made), nproc=3, batch_size=4, workers=workers
    )
    with pytest.raises(RanksFailed) as failed:
        each_rank(damage_and_read, job, job, damage, str(made / "shard-00003.safetensors"))
    assert list(failed.value.errors) == [2]
    kind, text, _ = failed.value.errors[2]
    assert kind == "RunFailed"
    assert "shard-00003.safetensors" in text


def damage_and_read(world: World, inherited: Any, job: Any, damage: Any, path: str) -> None:
    """The shard goes bad when the run has begun; only rank 2 needs it."""
    import torch.distributed as dist

    with engine.process_group(job, world):
        store = open_store(job, world, inherited)
        dist.barrier()
        if world.rank == 0:
            damage(Path(path))
        dist.barrier()
        for _ in engine.open_path(job)(store, Plan.of(job.config, 37), world):
            pass


def test_samples_of_differing_length_reach_their_ranks(tmp_path: Path) -> None:
    made = str(tmp_path / "shards")
    samples = [{"tokens": torch.full((index % 5,), index), "name": str(index)} for index in range(37)]
    writer.write(samples, made, samples_per_shard=10)
    ran = run(tmp_path / "run", sampler="sharded", dataset=made, nproc=3, batch_size=4)
    assert ran.findings == []
    assert sum(Counter(flat(ran.got())).values()) == 39
    read = loader(made, 0, 1, batch=5, shuffle=False, tail="keep")
    names = [(batch["name"], [row.tolist() for row in batch["tokens"]]) for batch, _ in read]
    assert [name for one, _ in names for name in one] == [str(index) for index in range(37)]
    assert [row for _, rows in names for row in rows] == [[index] * (index % 5) for index in range(37)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.integers(1, 4))
def test_parts_cover_the_folder_without_overlap_at_any_size(sizes: list[int], world: int) -> None:
    n = sum(sizes)
    deal = Rounds(n, world, 64)
    positions = np.unique(np.linspace(0, max(0, n - 1), 500, dtype=np.int64)) if n else np.zeros(0, np.int64)
    part, number = deal.locate(positions)
    begins = [n * rank // world for rank in range(world + 1)]
    assert ((number >= 0) & (number < np.diff(begins)[part])).all()
    assert len(set(zip(part.tolist(), number.tolist(), strict=True))) == len(positions)
    assert all(a <= b for a, b in pairwise(begins))

"""The keyed order, resumed on any number of ranks; batches equal to a stock DataLoader's; one gather for arrays."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

from shardlab.config import Tail
from shardlab.datapath._keyed import BatchReader, Order
from shardlab.datapath.keyed import KeyedLoader
from shardlab.dataset._arrays import ArrayDataset
from shardlab.dataset._rows import rows_of
from shardlab.plan import Plan
from shardlab.store import NoCounter, Store
from shardlab.world import World


def loaders(n: int, ranks: int, batch: int, tail: Tail = "pad", **plan: Any) -> list[KeyedLoader]:
    """The loaders of all ranks of a job, over the numbers 0 to n - 1."""
    store = Store(ArrayDataset(torch.arange(n)), NoCounter())
    made = Plan(n, batch, tail=tail, **plan)
    return [KeyedLoader(store, made, World(rank, ranks, rank, ranks)) for rank in range(ranks)]


def global_order(iterators: list[Any], steps: int | None = None) -> list[int]:
    """What all ranks get, step by step and rank by rank, of ``steps`` steps or of all."""
    found: list[int] = []
    step = 0
    while steps is None or step < steps:
        parts = [next(iterator, None) for iterator in iterators]
        if all(part is None for part in parts):
            break
        for part in parts:
            found += [] if part is None else part[0].tolist()
        step += 1
    return found


# Resuming


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 90),
    batch=st.integers(1, 5),
    tail=st.sampled_from(["pad", "drop", "keep"]),
    stages=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
@example(n=89, batch=3, tail="pad", stages=[(4, 3), (2, 4), (3, 2)], shuffle=True, epoch=1)
@example(n=8, batch=2, tail="pad", stages=[(4, 1), (2, 0), (3, 6)], shuffle=True, epoch=0)
def test_an_epoch_resumed_on_any_numbers_of_ranks_is_the_uninterrupted_order(
    n: int, batch: int, tail: Tail, stages: list[tuple[int, int]], shuffle: bool, epoch: int
) -> None:
    (alone,) = loaders(n, 1, 1, "keep", shuffle=shuffle)
    alone.set_epoch(epoch)
    whole = global_order([iter(alone)])
    assert sorted(whole) == list(range(n))
    state = json.dumps({"epoch": epoch, "consumed": 0, "seed": 0})
    got: list[int] = []
    for number, (ranks, steps) in enumerate([*stages, (stages[0][0], -1)]):
        made = loaders(n, ranks, batch, tail, shuffle=shuffle)
        for of_rank in made:
            of_rank.load_state_dict(json.loads(state))
        last = number == len(stages)
        got += global_order([iter(of_rank) for of_rank in made], None if last else steps)
        states = {json.dumps(of_rank.state_dict()) for of_rank in made[:1]}
        state = states.pop()
    rounds = max(ranks for ranks, _ in stages) * batch
    if tail == "keep":
        assert got == whole
    elif tail == "drop":
        assert got == whole[: len(got)]
        assert len(whole) - len(got) < rounds
    else:
        assert got[:n] == whole
        assert set(got) == set(range(n))
        assert got[n:] == [whole[place % n] for place in range(n, len(got))]


def test_four_ranks_then_two_then_three() -> None:
    (alone,) = loaders(200, 1, 1, "keep")
    whole = global_order([iter(alone)])
    state: dict[str, int] = alone.state_dict() | {"consumed": 0}
    got: list[int] = []
    for ranks, steps in ((4, 5), (2, 9), (3, None)):
        made = loaders(200, ranks, 3, "keep")
        for of_rank in made:
            of_rank.load_state_dict(state)
        got += global_order([iter(of_rank) for of_rank in made], steps)
        state = json.loads(json.dumps(made[0].state_dict()))
    assert got == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_counts_what_the_loop_has_had_and_not_what_was_fetched_ahead(workers: int) -> None:
    (made,) = loaders(100, 1, 10, workers=workers)
    batches = iter(made)
    for step in range(4):
        next(batches)
        assert made.state_dict()["consumed"] == 10 * (step + 1)
    made.set_epoch(1)
    state = made.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 0)


# The order


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), ranks=st.integers(1, 4), batch=st.integers(1, 40), seed=st.integers(0, 9))
def test_the_indices_of_a_step_are_the_same_whichever_steps_were_asked_for_before(
    n: int, ranks: int, batch: int, seed: int
) -> None:
    order = Order.of(Plan(n, batch, seed=seed), ranks, 0)
    steps = range(order.partition.steps(0))
    forwards = [order.indices(ranks - 1, step).tolist() for step in steps]
    backwards = [order.indices(ranks - 1, step).tolist() for step in reversed(steps)]
    assert forwards == backwards[::-1]


def test_the_first_index_of_a_thousand_million_needs_no_list() -> None:
    order = Order.of(Plan(10**9, 64), 4, 3)
    indices = order.indices(3, 10**6)
    assert len(set(indices.tolist())) == 64
    assert ((indices >= 0) & (indices < 10**9)).all()


# Batches


TREES = {
    "tensor": torch.arange(60, dtype=torch.int16).reshape(20, 3),
    "tuple": (torch.rand(20, 2, 2), torch.arange(20), torch.rand(20) > 0.5),
    "dict": {"x": torch.rand(20, 5).bfloat16(), "y": torch.arange(20, dtype=torch.uint8)},
}


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    return (
        type(ours) is type(theirs)
        and len(ours) == len(theirs)
        and all(same(one, other) for one, other in zip(ours, theirs, strict=True))
    )


def batches(dataset: Any, batch: int = 6) -> list[Any]:
    plan = Plan(len(dataset), batch, tail="keep", shuffle=False)
    made = KeyedLoader(Store(dataset, NoCounter()), plan, World(0, 1, 0, 1))
    return [got for got, _ in made]


@pytest.mark.parametrize("tree", TREES)
def test_arrays_come_gathered_as_a_stock_loader_collates_them(tree: str) -> None:
    dataset = ArrayDataset(TREES[tree])
    assert rows_of(dataset) is not None
    assert same(batches(dataset), list(DataLoader(dataset, 6)))


def test_a_tensor_dataset_of_torch_is_gathered_too() -> None:
    dataset = TensorDataset(*TREES["tuple"])
    assert rows_of(dataset) is not None
    assert same(batches(dataset), list(DataLoader(dataset, 6)))


class Doubled(TensorDataset):
    """Does more than look a sample up."""

    def __getitem__(self, index: Any) -> Any:
        return tuple(field * 2 for field in super().__getitem__(index))


class Fetches(Dataset[Any]):
    """Fetches a batch in one call, and counts the calls."""

    calls = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("one by one")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.calls += 1
        return [{"n": index, "text": str(index)} for index in indices]


def test_a_dataset_that_does_more_than_look_up_does_it_here_too() -> None:
    dataset = Doubled(torch.arange(20))
    assert rows_of(dataset) is None
    assert same(batches(dataset), list(DataLoader(dataset, 6)))


def test_a_dataset_that_fetches_batches_is_asked_once_for_each() -> None:
    dataset = Fetches()
    got = batches(dataset)
    assert dataset.calls == 4
    assert [int(n) for batch in got for n in batch["n"]] == list(range(20))
    assert got[3]["text"] == ["18", "19"]


def test_a_dataset_with_a_collate_function_of_its_own_keeps_it() -> None:
    dataset = ArrayDataset(torch.arange(20))
    dataset.collate_fn = lambda samples: [int(sample) for sample in samples]  # type: ignore[attr-defined]
    assert batches(dataset)[0] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "leaf",
    [
        torch.rand(30, 20).T, torch.rand(20, 3, requires_grad=True), torch.empty(20, 0),
        torch.rand(20, 3, dtype=torch.complex64).conj(), torch.nn.Parameter(torch.rand(20, 3)),
    ],
    ids=["transposed", "requires-grad", "empty", "conjugated", "parameter"],
)  # fmt: skip
def test_tensors_that_are_not_plain_rows_are_read_one_by_one_and_right(leaf: torch.Tensor) -> None:
    dataset = TensorDataset(leaf)
    assert rows_of(dataset) is None
    assert same(batches(dataset), list(DataLoader(dataset, 6)))


def test_a_reader_goes_to_another_process_without_the_rows() -> None:
    import pickle

    from shardlab.store._share import Attached, attach_memory
    from shardlab.store.shared import build

    dataset = Attached(build(lambda: ArrayDataset(torch.rand(1000, 1000))), attach_memory)
    reader = BatchReader(dataset, list, NoCounter().add)
    assert reader.rows is not None
    sent = pickle.dumps(reader)
    assert len(sent) < 10_000
    arrived = pickle.loads(sent)
    out = np.empty((2, 4000), np.uint8)
    arrived.gather(np.array([7, 999]), [out])
    assert torch.equal(torch.from_numpy(out).view(torch.float32), dataset.inner.tree[[7, 999]])

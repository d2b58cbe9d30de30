"""Keyed samplers where users put them: in plain loaders, torchdata's, Accelerate's, resumed on other ranks."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from ranks import each_rank, new_job
from shardlab.errors import UsageError
from shardlab.index.permutation import Permutation, key_of
from shardlab.sampler import KeyedBatchSampler, KeyedSampler, prepare

SAMPLES, BATCH = 43, 4
KINDS = [KeyedSampler, KeyedBatchSampler]

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it


class Numbers(Dataset[int]):
    """Sample i is i. Keeps the type of the indices it was asked for."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self.asked: set[type] = set()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: Any) -> Any:
        self.asked.add(type(index))
        return index


def sampler(
    kind: type = KeyedSampler, rank: int = 0, world_size: int = 1, samples: int = SAMPLES, **more: Any
) -> Any:
    return kind(samples, num_replicas=world_size, rank=rank, **{"batch_size": BATCH, **more})


def loader_of(keyed: Any, make: Any = DataLoader, dataset: Any = None, **more: Any) -> Any:
    dataset = Numbers(keyed.partition.samples) if dataset is None else dataset
    if isinstance(keyed, KeyedBatchSampler):
        return make(dataset, batch_sampler=keyed, **more)
    return make(dataset, batch_size=keyed.batch_size, sampler=keyed, **more)


def batches(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def flat(many: Iterable[list[int]]) -> list[int]:
    return [index for batch in many for index in batch]


def ranks(world_size: int, kind: type = KeyedSampler, epoch: int = 0, **more: Any) -> list[Any]:
    made = [sampler(kind, rank, world_size, **more) for rank in range(world_size)]
    for each in made:
        each.set_epoch(epoch)
    return made


def global_order(made: list[Any]) -> list[int]:
    """The indices of all ranks, step by step and rank by rank."""
    steps = zip(*(batches(loader_of(each)) for each in made), strict=True)
    return [index for step in steps for batch in step for index in batch]


# A drop-in for DistributedSampler


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_ranks_of_a_plain_loader_get_every_sample_in_equal_steps(kind: type, workers: int) -> None:
    got = [batches(loader_of(each, num_workers=workers)) for each in ranks(3, kind)]
    assert [len(each) for each in got] == [4, 4, 4]
    assert {len(batch) for each in got for batch in each} == {BATCH}
    assert set(flat(chain(*got))) == set(range(SAMPLES))
    assert len(flat(chain(*got))) == 48


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_differ_and_an_epoch_is_the_same_again(kind: type) -> None:
    each = sampler(kind, 1, 2)
    orders = []
    for epoch in (0, 1, 2, 1):
        each.set_epoch(epoch)
        orders.append(batches(loader_of(each)))
    assert orders[1] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert batches(loader_of(each)) == orders[3]  # as DistributedSampler, without set_epoch


def test_the_global_order_depends_on_seed_epoch_and_length_alone() -> None:
    wanted = Permutation(SAMPLES, key_of(9, 2)).chunk(0, SAMPLES).tolist()
    for world_size, batch_size in ((1, 4), (2, 4), (3, 2), (5, 1), (4, 16)):
        for kind in KINDS:
            made = ranks(world_size, kind, epoch=2, batch_size=batch_size, seed=9)
            assert global_order(made)[:SAMPLES] == wanted


def test_unshuffled_the_order_is_that_of_the_dataset() -> None:
    assert global_order(ranks(2, shuffle=False)) == [*range(SAMPLES), *range(5)]


@pytest.mark.parametrize("tail", ["pad", "drop", "keep"])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_honest_whatever_the_tail(kind: type, tail: str) -> None:
    for samples in (0, 1, 7, 8, 9, SAMPLES):
        for each in ranks(2, kind, samples=samples, tail=tail):
            loader = loader_of(each)
            assert len(each) == len(list(each))
            assert len(loader) == len(batches(loader))


def test_int_by_int_they_are_plain_ints_and_batch_by_batch_int64_arrays() -> None:
    ints, arrays = list(sampler()), list(sampler(KeyedBatchSampler))
    assert {type(index) for index in ints} == {int}
    assert {(type(array), array.dtype, array.shape) for array in arrays} == {
        (np.ndarray, np.dtype(np.int64), (BATCH,))
    }
    assert np.concatenate(arrays).tolist() == ints


def test_a_dataset_that_takes_arrays_gets_whole_batches() -> None:
    dataset = Numbers()
    loader = DataLoader(dataset, sampler=sampler(KeyedBatchSampler), batch_size=None)
    assert sorted(flat(batches(loader)))[-SAMPLES + 1 :] == list(range(1, SAMPLES))
    assert dataset.asked == {np.ndarray}


def test_a_dataset_whose_length_is_taken_is_not_read() -> None:
    dataset = Numbers()
    assert len(KeyedSampler(dataset, num_replicas=1, rank=0, batch_size=1)) == SAMPLES
    assert dataset.asked == set()


@pytest.mark.parametrize("kind", KINDS)
def test_iterating_a_thousand_million_samples_takes_no_memory_for_them(kind: type) -> None:
    many = iter(sampler(kind, 3, 8, 10**9, batch_size=64))
    tracemalloc.start()
    try:
        for _ in islice(many, 200_000 if kind is KeyedSampler else 200_000 // 64):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20


# Refusals


def test_without_a_process_group_or_launcher_the_ranks_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="num_replicas=1, rank=0"):
        KeyedSampler(10, batch_size=2)


def test_a_launcher_s_variables_say_the_rank_before_there_is_a_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    assert list(KeyedSampler(4, batch_size=2, shuffle=False)) == [2, 3]


def test_a_dataset_without_a_length_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a dataset with a length"):
        sampler(samples=iter([1]))  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(UsageError, match="num_replicas=2"):
        sampler(rank=rank, world_size=2)


def test_a_loader_of_another_batch_size_or_sampler_is_not_prepared() -> None:
    with pytest.raises(UsageError, match="batch_size must be the sampler's"):
        prepare(None, DataLoader(Numbers(), batch_size=BATCH + 1, sampler=sampler()))  # type: ignore[arg-type]
    for other in (
        DataLoader(Numbers()),
        DataLoader(Numbers(), sampler=sampler(KeyedBatchSampler), batch_size=None),
    ):
        with pytest.raises(UsageError, match="prepare takes"):
            prepare(None, other)  # type: ignore[arg-type]


# Resuming


def after(each: Any, steps: int) -> Iterator[Any]:
    """An iteration of a sampler that has given ``steps`` batches. Keep it: the sampler looks at it."""
    iteration = iter(each)
    for _ in range(steps * (BATCH if isinstance(each, KeyedSampler) else 1)):
        next(iteration, None)
    return iteration


def rest_of(made: list[Any], state: dict[str, int]) -> list[int]:
    """What all ranks get after loading a state that was saved as JSON."""
    for each in made:
        each.load_state_dict(json.loads(json.dumps(state)))
        each.set_epoch(state["epoch"])  # as a training loop does
    return flat(chain(*(batches(loader_of(each)) for each in made)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_a_state_resumes_on_any_number_of_ranks_with_every_remaining_sample_once(
    kind: type, world_size: int
) -> None:
    order = Permutation(SAMPLES, key_of(0, 4)).chunk(0, SAMPLES).tolist()
    for steps, tail in product(range(7), ("keep", "pad")):  # of two ranks: six steps, the last one not full
        old = ranks(2, kind, epoch=4, tail=tail)
        running = [after(each, steps) for each in old]
        states = [each.state_dict() for each in old]
        assert states[0] == states[1]
        remaining = order[steps * 2 * BATCH :]
        got = rest_of(ranks(world_size, kind, tail=tail), states[0])
        if tail == "keep":
            assert sorted(got) == sorted(remaining)
        assert set(got) >= set(remaining)
        assert len(got) - len(remaining) < world_size * BATCH
        del running


def test_a_state_is_a_few_integers_and_the_same_after_loading() -> None:
    each = sampler(rank=1, world_size=2)
    running = after(each, 2)
    state = each.state_dict()
    assert {type(value) for value in state.values()} == {int}
    assert (state["epoch"], state["consumed"], state["samples"], state["seed"]) == (0, 16, SAMPLES, 0)
    again = sampler(rank=0, world_size=2)
    again.load_state_dict(state)
    assert again.state_dict() == state
    del running


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_half_way_through_a_million_million_samples_is_arithmetic(kind: type) -> None:
    samples, consumed = 10**12, 5 * 10**11
    each = sampler(kind, 1, 8, samples, seed=3)
    each.load_state_dict({**each.state_dict(), "epoch": 6, "consumed": consumed})
    first = np.ravel(list(islice(each, BATCH if kind is KeyedSampler else 1))).tolist()
    positions = np.arange(consumed + BATCH, consumed + 2 * BATCH)
    assert first == Permutation(samples, key_of(3, 6)).permute(positions).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_an_epoch_is_not_repeated_and_the_next_one_is_whole(kind: type) -> None:
    old = sampler(kind)
    whole = [list(map(np.ravel, old)), old.set_epoch(1), list(map(np.ravel, old))]
    old.set_epoch(0)
    for _ in old:
        pass
    for start in (0, 1):  # loops that begin with the finished epoch, and with the next one
        new = sampler(kind)
        new.load_state_dict(old.state_dict())
        got = []
        for epoch in range(start, 2):
            new.set_epoch(epoch)
            got += list(map(np.ravel, new))
        assert np.array_equal(got, whole[2])


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_resumed_epoch_the_next_one_is_whole(kind: type) -> None:
    new = sampler(kind, seed=7)
    new.load_state_dict({"epoch": 2, "consumed": 20, "samples": SAMPLES, "seed": 7})
    assert len(flat(batches(loader_of(new)))) == 24
    new.set_epoch(3)
    assert set(flat(batches(loader_of(new)))) == set(range(SAMPLES))
    assert new.state_dict()["seed"] == 7


@pytest.mark.parametrize("kind", KINDS)
def test_another_epoch_begins_at_its_front_although_a_state_was_loaded(kind: type) -> None:
    new = sampler(kind)
    new.load_state_dict({"epoch": 2, "consumed": 20, "samples": SAMPLES, "seed": 0})
    new.set_epoch(3)
    assert len(batches(loader_of(new))) == 11


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_loader_with_workers_goes_on_at_a_loaded_state(kind: type, workers: int) -> None:
    whole = batches(loader_of(sampler(kind, 1, 2)))
    new = sampler(kind, 1, 2)
    new.load_state_dict({**new.state_dict(), "consumed": 16})
    loader = loader_of(new, num_workers=workers)
    assert batches(loader) == whole[2:]
    assert batches(loader) == whole


def test_within_a_batch_the_same_ranks_go_on_exactly_and_others_are_refused() -> None:
    old = sampler(rank=1, world_size=2)
    iteration = iter(old)
    had = list(islice(iteration, 6))
    state = old.state_dict()
    new = sampler(rank=1, world_size=2)
    new.load_state_dict(state)
    ahead = list(islice(iter(new), 5))
    assert had + ahead == list(sampler(rank=1, world_size=2))[:11]
    assert new.state_dict()["consumed"] == 16
    assert new.state_dict()["drawn"] == 3
    for other in (sampler(rank=1, world_size=3), sampler(rank=1, world_size=2, batch_size=2)):
        with pytest.raises(UsageError, match="within a batch"):
            other.load_state_dict(state)
    with pytest.raises(UsageError, match="KeyedSampler"):
        sampler(KeyedBatchSampler, 1, 2).load_state_dict(state)


def test_what_one_rank_drew_is_a_prefix_that_any_number_of_ranks_can_go_on_from() -> None:
    old = sampler(tail="keep")
    iteration = iter(old)
    had = list(islice(iteration, 6))
    rest = rest_of(ranks(3, tail="keep"), old.state_dict())
    assert sorted(had + rest) == list(range(SAMPLES))


# Inside torchdata's StatefulDataLoader


def stateful(kind: type, workers: int, rank: int = 1, world_size: int = 2, tail: str = "pad") -> Any:
    each = sampler(kind, rank, world_size, tail=tail)
    return each, loader_of(each, StatefulDataLoader, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stateful_loader_goes_on_after_any_batch_and_the_next_epoch_is_whole(
    kind: type, workers: int
) -> None:
    epochs = {epoch: batches(loader_of(ranks(2, kind, epoch)[1])) for epoch in (1, 2)}
    for taken in range(7):  # six batches; the loop has not ended
        each, loader = stateful(kind, workers)
        each.set_epoch(1)
        iteration = iter(loader)
        had = [next(iteration).tolist() for _ in range(taken)]
        state = loader.state_dict()
        del iteration
        new, loader = stateful(kind, workers)
        loader.load_state_dict(state)
        new.set_epoch(1)
        assert had + batches(loader) == epochs[1]
        new.set_epoch(2)
        assert batches(loader) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stateful_loader_saved_after_its_last_batch_goes_on_with_the_next_epoch(
    kind: type, workers: int
) -> None:
    _, loader = stateful(kind, workers)
    assert len(batches(loader)) == 6
    new, again = stateful(kind, workers)
    again.load_state_dict(loader.state_dict())
    new.set_epoch(1)
    assert batches(again) == batches(loader_of(ranks(2, kind, epoch=1)[1]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stateful_loader_goes_on_on_another_number_of_ranks(kind: type) -> None:
    had, state = [], {}
    for rank in range(2):
        _, loader = stateful(kind, 0, rank, tail="keep")
        iteration = iter(loader)
        had += [next(iteration).tolist() for _ in range(2)]
        state = loader.state_dict()
    rest = []
    for rank in range(3):
        _, loader = stateful(kind, 0, rank, 3, tail="keep")
        loader.load_state_dict(state)
        rest += batches(loader)
    assert sorted(flat(had + rest)) == list(range(SAMPLES))


# In a process group, and through Accelerator.prepare


def in_ranks(target: Any, folder: Path, *args: Any, nproc: int = 2) -> list[Any]:
    job = new_job(folder / "run", sampler="distributed", dataset="synthetic:n=8:5x3", nproc=nproc)
    return each_rank(target, job, *args)


def message(make: Any) -> str:
    with pytest.raises(UsageError) as refused:
        make()
    return str(refused.value)


def keep_in_a_group(world: Any, inherited: Any) -> tuple[str, int, int]:
    dist.init_process_group("gloo")
    refused = message(lambda: KeyedSampler(SAMPLES, batch_size=BATCH, tail="keep"))
    copes = KeyedSampler(SAMPLES, batch_size=BATCH, tail="keep", uneven_ends=True)
    even = KeyedSampler(SAMPLES + 5, batch_size=BATCH, tail="keep")
    dist.destroy_process_group()
    return refused, len(list(copes)), len(list(even))


def test_uneven_ends_are_refused_in_a_process_group_unless_the_loop_copes(tmp_path: Path) -> None:
    answers = in_ranks(keep_in_a_group, tmp_path)
    assert all("uneven_ends=True" in refused for refused, _, _ in answers)
    assert [counts for _, *counts in answers] == [[23, 24], [20, 24]]


def train(world: Any, inherited: Any, kind: str, tail: str, stateful: bool) -> dict[str, Any]:
    """Two epochs with an accumulation of 4, as a user of Accelerate writes them."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=4,
        dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful),
    )
    keyed = {"ints": KeyedSampler, "batches": KeyedBatchSampler}[kind](SAMPLES, batch_size=BATCH, tail=tail)
    loader = loader_of(keyed, dataset=TensorDataset(torch.arange(SAMPLES)))
    model, optimizer = torch.nn.Linear(1, 1), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = prepare(accelerator, loader)
    got, synced, gathered = [], [], []
    for epoch in range(2):
        loader.set_epoch(epoch)
        got.append([])
        for (indices,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(indices[:, None].float()).mean())
                optimizer.step()
                optimizer.zero_grad()
            got[-1].append(indices.tolist())
            if epoch == 0:
                synced.append(accelerator.sync_gradients)
                gathered += accelerator.gather_for_metrics(indices).tolist()
    answer = {
        "got": got, "synced": synced, "gathered": gathered, "steps": len(loader),
        "total_batch_size": loader.total_batch_size, "listed": loader in accelerator._dataloaders,
        "as_it_is": accelerator.prepare(loader) is loader,
    }  # fmt: skip
    accelerator.end_training()
    return answer


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("kind", ["ints", "batches"])
def test_prepared_for_accelerate_ranks_share_one_epoch_and_accumulation_ends_with_it(
    kind: str, stateful: bool, tmp_path: Path
) -> None:
    answers = in_ranks(train, tmp_path, kind, "pad", stateful)
    for epoch in range(2):
        got = [answer["got"][epoch] for answer in answers]
        assert [len(each) for each in got] == [6, 6]
        assert len(set(flat(chain(*got)))) == SAMPLES
        assert got == [batches(loader_of(each)) for each in ranks(2, epoch=epoch)]
    for answer in answers:
        assert answer["synced"] == [False, False, False, True, False, True]
        assert answer["total_batch_size"] == 8
        assert answer["steps"] == 6
        assert sorted(answer["gathered"]) == list(range(SAMPLES))


def test_a_dropped_tail_leaves_gathered_metrics_whole(tmp_path: Path) -> None:
    for answer in in_ranks(train, tmp_path, "ints", "drop", False):
        assert answer["synced"] == [False, False, False, True, True]
        assert len(answer["gathered"]) == len(set(answer["gathered"])) == 40


def test_accelerate_takes_a_loader_with_its_mark_as_it_is(tmp_path: Path) -> None:
    """``_is_accelerate_prepared`` is a private name of Accelerate, set by shardlab.sampler.prepare."""
    for answer in in_ranks(train, tmp_path, "ints", "pad", False):
        assert answer["listed"]
        assert answer["as_it_is"]


def resume_under_accelerate(world: Any, inherited: Any) -> list[list[list[int]]]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    keyed = KeyedSampler(SAMPLES, batch_size=BATCH)
    keyed.load_state_dict({"epoch": 3, "consumed": 16, "samples": SAMPLES, "seed": 0})
    loader = prepare(accelerator, loader_of(keyed))
    got = [batches(loader), batches(loader)]
    keyed.load_state_dict({"epoch": 6, "consumed": 24, "samples": SAMPLES, "seed": 0})
    loader.set_epoch(6)
    got.append(batches(loader))
    accelerator.end_training()
    return got


def test_a_prepared_loader_goes_on_at_a_loaded_state_and_counts_epochs_from_there(tmp_path: Path) -> None:
    for rank, got in enumerate(in_ranks(resume_under_accelerate, tmp_path)):
        whole = {epoch: batches(loader_of(ranks(2, epoch=epoch)[rank])) for epoch in (3, 4, 6)}
        assert got == [whole[3][2:], whole[4], whole[6][3:]]


RESUMED = [(4, 16), (3, 16), (4, 24), (5, 40)]
"""Batch size on three ranks, samples consumed before: 27 are left in rounds of 12, and in rounds of 9, ..."""


def gather_a_resumed_epoch(world: Any, inherited: Any, kind: str, tail: str, stateful: bool) -> list[Any]:
    """What ``gather_for_metrics`` gives in a resumed epoch and in the next one, for each of RESUMED."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful)
    )
    found = []
    for batch_size, consumed in RESUMED:
        keyed = {"ints": KeyedSampler, "batches": KeyedBatchSampler}[kind](
            SAMPLES, batch_size=batch_size, tail=tail
        )
        keyed.load_state_dict({"epoch": 3, "consumed": consumed, "samples": SAMPLES, "seed": 0})
        loader = prepare(accelerator, loader_of(keyed))
        gathered: list[list[int]] = []
        for epoch in (3, 4):
            loader.set_epoch(epoch)
            gathered.append([])
            for indices in loader:
                gathered[-1] += accelerator.gather_for_metrics(indices).tolist()
        found.append(gathered)
    accelerator.end_training()
    return found


@pytest.mark.parametrize(("kind", "stateful"), [("ints", False), ("batches", False), ("batches", True)])
def test_metrics_of_a_resumed_epoch_are_of_what_was_left_each_once(
    kind: str, stateful: bool, tmp_path: Path
) -> None:
    orders = [Permutation(SAMPLES, key_of(0, epoch)).chunk(0, SAMPLES).tolist() for epoch in (3, 4)]
    for of_rank in in_ranks(gather_a_resumed_epoch, tmp_path, kind, "pad", stateful, nproc=3):
        for (_, consumed), gathered in zip(RESUMED, of_rank, strict=True):
            assert gathered == [orders[0][consumed:], orders[1]]


def test_metrics_of_a_resumed_epoch_with_a_dropped_tail_are_of_its_full_rounds(tmp_path: Path) -> None:
    order = Permutation(SAMPLES, key_of(0, 3)).chunk(0, SAMPLES).tolist()
    for of_rank in in_ranks(gather_a_resumed_epoch, tmp_path, "ints", "drop", False, nproc=3):
        ends = [16 + 2 * 12, 16 + 3 * 9, 24 + 12, 40]
        for (_, consumed), end, gathered in zip(RESUMED, ends, of_rank, strict=True):
            assert gathered[0] == order[consumed:end]


def resume_a_stateful_loader(world: Any, inherited: Any, kind: str, state: Any) -> tuple[list[int], Any]:
    """Gathered indices of three steps of epoch 2, or of what a state leaves; the state then."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True)
    )
    keyed = {"ints": KeyedSampler, "batches": KeyedBatchSampler}[kind](SAMPLES, batch_size=BATCH)
    loader = prepare(accelerator, loader_of(keyed))
    if state is not None:
        loader.load_state_dict(state)
    loader.set_epoch(2)
    gathered, after = [], None
    for step, indices in enumerate(loader):
        gathered += accelerator.gather_for_metrics(indices).tolist()
        if state is None and step == 2:
            after = loader.state_dict()
            break
    accelerator.end_training()
    return gathered, after


@pytest.mark.parametrize("kind", ["ints", "batches"])
def test_a_prepared_stateful_loader_goes_on_on_other_ranks_and_gathers_what_was_left(
    kind: str, tmp_path: Path
) -> None:
    order = Permutation(SAMPLES, key_of(0, 2)).chunk(0, SAMPLES).tolist()
    first = in_ranks(resume_a_stateful_loader, tmp_path / "2", kind, None)
    assert [gathered for gathered, _ in first] == [order[:24]] * 2
    rest = in_ranks(resume_a_stateful_loader, tmp_path / "3", kind, first[0][1], nproc=3)
    assert [gathered for gathered, _ in rest] == [order[24:]] * 3


def uneven_after_resuming(world: Any, inherited: Any) -> str:
    dist.init_process_group("gloo")
    keyed = KeyedSampler(48, batch_size=BATCH, tail="keep")  # six rounds
    keyed.load_state_dict({"epoch": 0, "consumed": 3})
    refused = message(lambda: list(keyed))
    dist.destroy_process_group()
    return refused


def test_what_is_left_of_an_even_epoch_may_be_uneven_and_is_refused_too(tmp_path: Path) -> None:
    for refused in in_ranks(uneven_after_resuming, tmp_path):
        assert "uneven_ends=True" in refused


def split_by_accelerate(world: Any, inherited: Any) -> dict[str, Any]:
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader

    accelerator = Accelerator(cpu=True)

    def prepared(keyed: Any, **more: Any) -> Any:
        return prepare_data_loader(
            loader_of(keyed), accelerator.device, put_on_device=True, rng_types=["generator"], **more
        )

    unsplit = KeyedSampler(SAMPLES, num_replicas=1, rank=0, batch_size=BATCH, tail="keep")
    answer = {
        "unsplit": batches(accelerator.prepare(loader_of(unsplit))),
        "ints": message(
            lambda: batches(accelerator.prepare(loader_of(KeyedSampler(SAMPLES, batch_size=BATCH))))
        ),
        "batches": message(lambda: batches(prepared(KeyedBatchSampler(SAMPLES, batch_size=BATCH)))),
        "split": message(
            lambda: batches(prepared(KeyedSampler(SAMPLES, batch_size=BATCH), split_batches=True))
        ),
        "other": message(lambda: prepare(accelerator, loader_of(sampler(world_size=1)))),
    }
    if world.rank == 0:  # dispatching, the others never ask for an index
        answer["dispatched"] = message(
            lambda: batches(prepared(KeyedSampler(SAMPLES, batch_size=BATCH), dispatch_batches=True))
        )
    accelerator.end_training()
    return answer


def test_accelerate_may_split_what_is_not_split_and_nothing_twice(tmp_path: Path) -> None:
    answers = in_ranks(split_by_accelerate, tmp_path)
    assert [answer.pop("unsplit") for answer in answers] == [batches(loader_of(each)) for each in ranks(2)]
    for answer in answers:
        assert "must be the Accelerator's" in answer.pop("other")
        for refused in answer.values():
            assert "shardlab.sampler.prepare(accelerator, loader)" in refused

"""A buffer is used again when nobody can see it any more, and not before."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from shardlab.datapath._buffers import KEPT, BufferPool
from shardlab.datapath.keyed import KeyedLoader
from shardlab.plan import Plan
from shardlab.store import NoCounter, Store
from shardlab.world import World

SAMPLES, BATCH = 100, 10
DATA = torch.arange(SAMPLES * 4, dtype=torch.float32).reshape(SAMPLES, 4)


def loader(shuffle: bool = False, workers: int = 0) -> KeyedLoader:
    plan = Plan(SAMPLES, BATCH, shuffle=shuffle, workers=workers)
    return KeyedLoader(Store(TensorDataset(DATA), NoCounter()), plan, World(0, 1, 0, 1))


def right(pairs: Any) -> int:
    """How many of the batches are what their indices say."""
    return sum(torch.equal(batch[0], DATA[indices]) for batch, indices in pairs)


def test_two_lent_at_once_are_two() -> None:
    pool = BufferPool()
    first, second = pool.lend(64), pool.lend(64)
    first[:], second[:] = 1, 2
    assert first.sum() == 64
    assert pool.made == 2


def test_a_buffer_comes_back_when_its_last_view_dies() -> None:
    pool = BufferPool()
    lent = pool.lend(64)
    view = torch.from_numpy(lent)[3:].view(torch.int8)
    del lent
    other = pool.lend(64)
    assert pool.made == 2
    del view, other
    again = [pool.lend(64) for _ in range(2)]
    assert pool.made == 2
    assert len(again) == 2


def test_sizes_do_not_mix() -> None:
    pool = BufferPool()
    for nbytes in (10, 20, 0, 10, 20, 0):
        assert pool.lend(nbytes).shape == (nbytes,)
    assert pool.made <= 4


def test_a_loop_that_drops_its_batches_lives_on_two_buffers() -> None:
    made = loader()
    for _ in range(3):
        for batch, _indices in made:
            del batch
    assert made._pool.made <= 2


def test_a_list_of_all_batches_has_ten_of_ten_right() -> None:
    assert right(list(loader(shuffle=True))) == 10


def test_many_batches_that_came_back_are_not_all_kept() -> None:
    made = loader()
    kept = list(made)
    assert made._pool.made == 10
    del kept
    gc.collect()
    assert sum(map(len, made._pool._free.values())) == KEPT < 10
    assert right(list(made)) == 10


@pytest.mark.parametrize("keep", [lambda t: t[:1], lambda t: t.numpy(), lambda t: t.untyped_storage(),
                                  lambda t: t.view(torch.int32), torch.utils.dlpack.to_dlpack])  # fmt: skip
def test_any_kind_of_view_keeps_a_batch_as_it_was(keep: Any) -> None:
    made = iter(loader())
    batch = next(made)[0][0]
    kept = keep(batch)
    pointer = batch.data_ptr()
    del batch
    others = {next(made)[0][0].data_ptr() for _ in range(5)}
    assert pointer not in others
    del kept


def test_what_autograd_saved_is_right_after_the_next_batches() -> None:
    weight = torch.ones(4, requires_grad=True)
    losses, due = [], []
    for batch, indices in loader(shuffle=True):
        losses.append((weight * batch[0]).sum())
        due.append(DATA[indices].sum(0))
        del batch
    for loss, gradient in zip(losses, due, strict=True):
        weight.grad = None
        loss.backward()
        assert torch.equal(weight.grad, gradient)


def test_a_loader_that_fetches_one_batch_ahead_gets_each_right() -> None:
    """As Accelerate's, which asks for batch n + 1 before it yields batch n."""

    class Inner(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return ((batch[0], indices) for batch, indices in loader(shuffle=True))

    prepared = Accelerator(cpu=True).prepare(DataLoader(Inner(), batch_size=None))
    seen = 0
    for batch, indices in prepared:
        assert torch.equal(batch, DATA[indices])
        seen += 1
    assert seen == 10


def test_a_buffer_may_come_back_in_another_thread() -> None:
    pool = BufferPool()
    for _ in range(50):
        box = [pool.lend(64)]
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
    assert pool.made == 1


def test_a_buffer_in_a_cycle_of_garbage_comes_back_when_it_is_collected() -> None:
    pool = BufferPool()
    cycle: list[Any] = [pool.lend(64)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert isinstance(pool.lend(64), np.ndarray)
    assert pool.made == 1


def test_writing_to_a_batch_reaches_neither_the_dataset_nor_a_later_batch() -> None:
    made = loader()
    for batch, _indices in made:
        batch[0].fill_(-1)
        del batch
    assert right(made) == 10
    assert torch.equal(DATA, torch.arange(400, dtype=torch.float32).reshape(100, 4))

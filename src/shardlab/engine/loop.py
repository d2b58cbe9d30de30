"""One epoch of one rank: ask for a batch, read it, note who came, compute, until the stream ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardlab.engine.batch import read_every_byte, to_device
from shardlab.errors import RunFailed
from shardlab.index.ledger import Ledger
from shardlab.measure.hold import Holder, HoldReply
from shardlab.measure.timer import StepTimer
from shardlab.measure.tree import tree_cpu_s

Words = Callable[[Any], NDArray[np.uint64]]


@dataclass(frozen=True)
class Epoch:
    """What one rank saw in one epoch; ``batch_bytes`` is of all its batches.

    ``hold`` is None where nobody read its memory.
    """

    timer: StepTimer
    steps: int
    len_reported: int | None
    batch_bytes: int
    largest_batch_bytes: int
    cpu_s: float
    hold: HoldReply | None


@dataclass(frozen=True)
class LoopTools:
    """What the loop works with besides the loader; the same in every epoch."""

    device: torch.device
    compute: Callable[[Any], None] | None
    words: Words | None
    progress: Callable[[int, int | None], None]
    max_steps: int | None


def run_epoch(
    loader: Any,
    epoch: int,
    ledger: Ledger,
    tools: LoopTools,
    holder: Holder | None,
    expected_steps: int | None,
) -> Epoch:
    """Run one epoch. With a ``holder`` the rank stops before its last step until its memory was read.

    ``expected_steps`` is the number of steps an epoch before this one had, for loaders without a length.
    """
    loader.set_epoch(epoch)
    length = length_of(loader)
    last = _last_step(length if length is not None else expected_steps, tools.max_steps)
    total, largest, hold, steps = 0, 0, None, 0
    cpu_start = tree_cpu_s(os.getpid())
    timer = StepTimer()
    asked = time.perf_counter()
    iterator = iter(loader)
    while tools.max_steps is None or steps < tools.max_steps:
        if holder is not None and steps == last:
            hold, held_s, held_cpu_s = _hold(holder, epoch)
            timer.held_s += held_s
            cpu_start += held_cpu_s
            asked = time.perf_counter()
        try:
            batch, indices = _pair(next(iterator))
        except StopIteration:
            timer.waits_s.append(time.perf_counter() - asked)
            break
        timer.waits_s.append(time.perf_counter() - asked)
        if tools.device.type != "cpu":
            batch = to_device(batch, tools.device)
        nbytes, _sum = read_every_byte(batch)
        total, largest = total + nbytes, max(largest, nbytes)
        ledger.write(_flat(indices), tools.words(batch) if tools.words else None)
        if tools.compute is not None:
            started = time.perf_counter()
            tools.compute(batch)
            timer.compute_s += time.perf_counter() - started
        del batch, indices
        steps += 1
        tools.progress(steps, None if last is None else last + 1)
        asked = time.perf_counter()
    timer.end()
    cpu_s = tree_cpu_s(os.getpid()) - cpu_start
    if holder is not None and hold is None:
        holder.ended(epoch)
    return Epoch(timer, steps, length, total, largest, cpu_s, hold)


def length_of(loader: Any) -> int | None:
    """``len(loader)``, or None where it has none."""
    try:
        return len(loader)
    except TypeError:
        return None


def _last_step(steps: int | None, max_steps: int | None) -> int | None:
    """Index of the step before which the memory is read: the last one, and never before the first."""
    known = [count for count in (steps, max_steps) if count is not None]
    return max(0, min(known) - 1) if known else None


def _hold(holder: Holder, epoch: int) -> tuple[HoldReply | None, float, float]:
    started, cpu = time.perf_counter(), tree_cpu_s(os.getpid())
    reply = holder.hold(epoch)
    return reply, time.perf_counter() - started, tree_cpu_s(os.getpid()) - cpu


def _pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise RunFailed(
            f"a data path's loader must yield (batch, indices), but it yielded {type(item).__name__}: "
            "use store.indexed with store.collate_fn, or yield the pair itself"
        )
    return item[0], item[1]


def _flat(indices: Any) -> NDArray[Any]:
    """One axis, and no conversion: the ledger refuses what is no whole number."""
    if isinstance(indices, torch.Tensor):
        indices = indices.cpu().numpy()
    return np.asarray(indices).reshape(-1)

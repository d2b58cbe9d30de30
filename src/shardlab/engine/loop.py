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
from shardlab.measure.timer import Mark, StepTimer, prepared_while_held
from shardlab.measure.tree import tree_cpu_s

Words = Callable[[Any], NDArray[np.uint64]]


@dataclass(frozen=True)
class Epoch:
    """What one rank saw in one epoch; ``batch_bytes`` is of all its batches.

    ``hold`` is None where nobody read its memory. ``paced_s`` and ``cpu_s`` are what the epoch takes where nobody is
    held: the seconds of the timer, and what was prepared meanwhile.
    """

    timer: StepTimer
    steps: int
    len_reported: int | None
    batch_bytes: int
    largest_batch_bytes: int
    cpu_s: float
    hold: HoldReply | None
    paced_s: float


@dataclass(frozen=True)
class LoopTools:
    """What the loop works with besides the loader; the same in every epoch."""

    device: torch.device
    words: Words | None
    progress: Callable[[int, int | None], None]
    max_steps: int | None
    in_hand: Callable[[int], list[tuple[int, int]]] | None = None
    """Where batches lie, for who reads this process's memory; asked with the bytes of the largest."""


class Feed:
    """The batches of one epoch, and all that is noted about them on the way to whoever computes on them.

    With a ``holder`` the rank stops before step ``held_before`` until its memory was read: before its last one,
    unless somebody who knows of the other ranks sets it to an earlier one; None for never. ``expected_steps`` is
    the number of steps an epoch before this one had, for loaders without a length.
    """

    def __init__(
        self,
        loader: Any,
        epoch: int,
        ledger: Ledger,
        tools: LoopTools,
        holder: Holder | None,
        expected_steps: int | None,
    ) -> None:
        loader.set_epoch(epoch)
        self.length = length_of(loader)
        known = self.length if self.length is not None else expected_steps
        self.last = _last_step(known, tools.max_steps)
        self.held_before = self.last
        self.steps = 0
        self.timer = StepTimer()
        self.epoch = epoch
        self._ledger, self._tools, self._holder = ledger, tools, holder
        self._bytes = self._largest = 0
        self._hold: HoldReply | None = None
        self._marks: list[Mark] = []  # after the first step, when held, after the step that followed
        self._cpu_start = tree_cpu_s(os.getpid())
        self._iterator: Any = None
        self._loader = loader
        self._given = False
        self.begun: Callable[[], None] | None = None  # called once the iterator is there, skipped batches read
        self._ended: Epoch | None = None

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        self._step_is_over()
        tools, timer = self._tools, self.timer
        if tools.max_steps is not None and self.steps >= tools.max_steps:
            raise StopIteration
        if self._holder is not None and self.steps == self.held_before:
            self._be_held(self._holder)
        asked = time.perf_counter()
        if self._iterator is None:
            self._iterator = iter(self._loader)
            if self.begun is not None:
                self.begun()
        try:
            batch, indices = _pair(next(self._iterator))
        except StopIteration:
            timer.waits_s.append(time.perf_counter() - asked)
            raise
        came = time.perf_counter()
        timer.waits_s.append(came - asked)
        if tools.device.type != "cpu":
            batch = to_device(batch, tools.device)
        nbytes, _sum = read_every_byte(batch)
        self._bytes, self._largest = self._bytes + nbytes, max(self._largest, nbytes)
        self._ledger.write(_flat(indices), tools.words(batch) if tools.words else None)
        self._given = True
        timer.other_s += time.perf_counter() - came
        return batch

    def end(self) -> Epoch:
        """The epoch is through, or left: what came of it. The last batch must not be held any more.

        Asked again it says the same: what a rank does after its last step is no part of the epoch.
        """
        if self._ended is None:
            self._step_is_over()
            self.timer.end()
            cpu_s = tree_cpu_s(os.getpid()) - self._cpu_start
            if self._holder is not None and self._hold is None:
                self._holder.ended(self.epoch)
            wall_lost_s, cpu_lost_s = prepared_while_held(*self._marks) if len(self._marks) == 3 else (0.0, 0.0)
            self._ended = Epoch(
                self.timer, self.steps, self.length, self._bytes, self._largest, cpu_s + cpu_lost_s, self._hold,
                self.timer.wall_s + wall_lost_s,
            )  # fmt: skip
        return self._ended

    def _step_is_over(self) -> None:
        if self._given:
            started = time.perf_counter()
            self._given = False
            self.steps += 1
            self._tools.progress(self.steps, None if self.last is None else self.last + 1)
            if self._holder is not None and (self.steps == 1 or len(self._marks) == 2):
                self._mark()
            self.timer.other_s += time.perf_counter() - started

    def _be_held(self, holder: Holder) -> None:
        if len(self._marks) == 1:
            self._mark()
        started, cpu = time.perf_counter(), tree_cpu_s(os.getpid())
        in_hand = self._tools.in_hand
        self._hold = holder.hold(self.epoch, in_hand(self._largest) if in_hand else [])
        self.timer.held_s += time.perf_counter() - started
        self._cpu_start += tree_cpu_s(os.getpid()) - cpu

    def _mark(self) -> None:
        cpu_s = tree_cpu_s(os.getpid()) - self._cpu_start
        self._marks.append(Mark(self.steps, self._bytes, self.timer.wall_s, cpu_s))


def compute_on(feed: Feed, compute: Callable[[Any], None] | None) -> None:
    """Ask for every batch, and do the same work on each."""
    for batch in feed:
        if compute is not None:
            started = time.perf_counter()
            compute(batch)
            feed.timer.compute_s += time.perf_counter() - started
        del batch


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

"""Our data path in a loop that is not ours: its batches, its clock, and the ends of its epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from shardlab.errors import UsageError
from shardlab.framework._prepared import Exchange
from shardlab.trainconfig import TrainConfig
from shardlab.world import World


class Training(Protocol):
    """What is asked of a training run; see ``shardlab.engine.trainee.Run``."""

    job: Any
    train: TrainConfig
    world: World
    loader: Any
    device: torch.device
    module: nn.Module
    epochs: Any

    @property
    def total(self) -> int: ...

    def optimizer_of(self, parameters: Any) -> Optimizer: ...

    def halves(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]: ...

    def evaluation_data(self) -> tuple[Any, Callable[[list[Any]], Any]] | None: ...

    def ended(
        self, feed: Any, losses: list[float], rate: float, evaluated: tuple[float, float, int] | None
    ) -> None: ...


def steps_of(training: Training) -> int:
    """How many steps each epoch has. Raises UsageError where Trainer could not train them."""
    config = training.job.config
    if config.tail == "keep" and training.world.world_size > 1:
        raise UsageError(
            "--framework trainer needs ranks with equally many steps", "--tail keep", ["pad", "drop"]
        )
    try:
        steps = len(training.loader)
    except TypeError:
        raise UsageError(
            "--framework trainer needs a data path that has a length", f"--sampler {config.sampler} on a stream",
            cure="use --framework ddp or accelerate",
        ) from None  # fmt: skip
    steps = steps if config.max_steps is None else min(steps, config.max_steps)
    if steps < 1:
        raise UsageError("--framework trainer needs at least 1 step in an epoch", steps)
    return steps


@dataclass
class Loop:
    """What Trainer's loop is given, and what it does with it: the batches of each epoch, losses and seconds.

    To Trainer it is a loader. That one is not Accelerate's, which would give each rank a share of its share.
    """

    training: Training
    steps: int
    schedule: Any
    exchange: Exchange = field(default_factory=Exchange)
    epoch: int = -1
    rate: float = 0.0
    losses: list[float] = field(default_factory=list)
    feed: Any = None
    _started_s: float = 0.0
    _communicated_s: float = 0.0

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Begin the next epoch. Each batch comes in a box: who takes it out of there has the only one."""
        self.epoch += 1
        self.losses, self.rate = [], float(self.schedule.get_last_lr()[0])
        self.feed = self.training.epochs.begin(self.epoch, hold=self.epoch == self.training.total - 1)
        self.feed.timer.comm_s = 0.0
        return map(_boxed, self.feed)

    def step_begins(self) -> None:
        """A batch came, and nothing was computed on it."""
        self._started_s = time.perf_counter()

    def gradients_are_there(self, loss: float) -> None:
        """Forward and backward of a batch are through."""
        self._communicated_s = self.exchange.take()
        self.losses.append(loss)

    def step_ends(self) -> None:
        """The rest of a step is through, too: the optimiser's, where it took one."""
        timer, training = self.feed.timer, self.training
        timer.comm_s += self._communicated_s
        timer.compute_s += time.perf_counter() - self._started_s - self._communicated_s
        samples = len(self.losses) * training.job.config.batch_size
        training.epochs.progress.tell(training.world.local_rank, self.losses[-1], timer.wait_s, samples)

    def epoch_ends(self, evaluate: Callable[[], tuple[float, float, int] | None]) -> None:
        """Trainer has had its steps: see the stream end, evaluate, report."""
        for batch in self.feed:  # none, unless the data path has more than it says
            del batch
        self.feed.end()
        self.training.ended(self.feed, self.losses, self.rate, evaluate())


def _boxed(batch: Any) -> dict[str, Any]:
    return {"batch": batch}


class Group:
    """The batches of one optimiser step, each taken when it is due.

    Trainer's own list has all of them before it computes on the first, more than a ring may have slots.
    """

    def __init__(self, batches: Iterator[Any], count: int) -> None:
        self.batches, self.count = batches, count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return islice(self.batches, self.count)

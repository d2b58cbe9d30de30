"""A model that is ready to be trained, and the clock of what its ranks say to each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


class Exchange:
    """When this rank's gradients were ready: what the backward pass takes from then on is communication.

    Buckets that go out earlier travel while gradients are still computed, and cost no time of their own. Where
    one rank is slower than the others, it is here that they wait for it.
    """

    def __init__(self) -> None:
        self._ready_s: float | None = None

    def watch(self, model: nn.Module) -> None:
        """See the buckets of a model that torch's DDP wraps; any other exchanges nothing."""
        if isinstance(model, DistributedDataParallel):
            # Without annotations: torch compares them with its own classes, and they are texts here.
            model.register_comm_hook(None, lambda _state, bucket: self._send(bucket))

    def take(self) -> float:
        """Seconds since the last bucket was ready; 0 where none was sent since this was asked last."""
        ready, self._ready_s = self._ready_s, None
        return 0.0 if ready is None else time.perf_counter() - ready

    def _send(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self._ready_s = time.perf_counter()
        return allreduce_hook(cast(Any, None), bucket)


def sum_over_ranks(figures: torch.Tensor) -> torch.Tensor:
    """The sum over the process group, on every rank."""
    if dist.is_initialized():
        dist.all_reduce(figures)
    return figures


@dataclass(frozen=True)
class Prepared:
    """What the loop works with.

    ``model`` is called, ``module`` is what was given: the weights that are saved and evaluated. ``optimizer`` is
    stepped, ``plain_optimizer`` is torch's own below it, which the schedule and checkpoints work on. ``total``
    adds up a tensor over all ranks.
    """

    model: nn.Module
    module: nn.Module
    optimizer: Any
    plain_optimizer: Optimizer
    backward: Callable[[torch.Tensor], Any] = torch.Tensor.backward
    exchange: Exchange = field(default_factory=Exchange)
    total: Callable[[torch.Tensor], torch.Tensor] = sum_over_ranks

    def __post_init__(self) -> None:
        self.exchange.watch(self.model)

    def keeping_gradients(self) -> AbstractContextManager[Any]:
        """Forward and backward here leave the gradients on this rank."""
        if isinstance(self.model, DistributedDataParallel):
            return cast(AbstractContextManager[Any], cast(Any, self.model).no_sync())
        return nullcontext()

    def with_uneven_ends(self) -> AbstractContextManager[Any]:
        """A rank that is through answers for the others until they are, too."""
        if isinstance(self.model, DistributedDataParallel):
            return cast(AbstractContextManager[Any], cast(Any, self.model).join())
        return nullcontext()

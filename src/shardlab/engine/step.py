"""One step of training: forward, backward, and every few steps the optimiser."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from shardlab.engine.model import inputs_and_labels
from shardlab.framework import Prepared
from shardlab.world import World


@dataclass
class Training:
    """A model in training; ``losses`` are this rank's, one for each step of the epoch.

    With ``accumulation`` k the optimiser steps after every k batches, and after the last one of an epoch, on the
    mean of their gradients. ``steps`` is how many batches the epoch is said to have, None where nobody knows; it
    may have fewer, or more. ``pending`` batches have left gradients that the optimiser has not stepped on.
    """

    prepared: Prepared
    dtype: torch.dtype
    accumulation: int = 1
    steps: int | None = None
    losses: list[float] = field(default_factory=list)
    pending: int = 0

    def begin(self, steps: int | None) -> None:
        """An epoch, or what is left of one."""
        self.steps, self.losses, self.pending = steps, [], 0
        self.prepared.model.train()
        self.prepared.optimizer.zero_grad()

    def step(self, batch: Any) -> tuple[float, float]:
        """Train on a batch: seconds of computing, and of communicating where ranks exchanged gradients."""
        started = time.perf_counter()
        prepared, size = self.prepared, self._group()
        is_last = self.pending + 1 == size
        with nullcontext() if is_last else prepared.keeping_gradients():
            inputs, labels = inputs_and_labels(batch, self.dtype)
            loss = functional.cross_entropy(prepared.model(inputs), labels)
            prepared.backward(loss / size)
            communication_s = prepared.exchange.take()
        if is_last:
            prepared.optimizer.step()
            prepared.optimizer.zero_grad()
        self.pending = 0 if is_last else self.pending + 1
        self.losses.append(float(loss.detach()))
        return time.perf_counter() - started - communication_s, communication_s

    def finish(self) -> tuple[float, float]:
        """The epoch is through: step on what a stream that ended in mid-group has left, as on a group of its own.

        Seconds as those of a step. Ranks end alike here: where they may not, groups are of one batch.
        """
        if not self.pending:
            return 0.0, 0.0
        started = time.perf_counter()
        scale = self._group() / self.pending  # each batch's gradient was divided by how many there should be
        gradients = [each.grad for each in self.prepared.module.parameters() if each.grad is not None]
        for gradient in gradients:
            gradient.mul_(scale)
        exchanging = time.perf_counter()
        _average(gradients, self.prepared.total)  # the group's last batch would have done that
        communication_s = time.perf_counter() - exchanging
        self.prepared.optimizer.step()
        self.prepared.optimizer.zero_grad()
        self.pending = 0
        return time.perf_counter() - started - communication_s, communication_s

    def _group(self) -> int:
        """How many batches the group has that the next one or the last pending one is of."""
        return batches_of_group(len(self.losses) - self.pending, self.accumulation, self.steps)


def batches_of_group(first: int, accumulation: int, steps: int | None) -> int:
    """How many batches there are to a step of the optimiser, for the group that begins with batch ``first``.

    A group is full unless an epoch of ``steps`` batches ends in it. Where nobody knows when it ends (None), or it
    should have ended before, it is full.

    >>> [batches_of_group(first, 4, 10) for first in (0, 4, 8, 10)]
    [4, 4, 2, 4]
    """
    left = 0 if steps is None else steps - first
    return min(accumulation, left) if left > 0 else accumulation


def evaluate(
    prepared: Prepared, dataset: Any, batch_size: int, dtype: torch.dtype, world: World,
    collate: Callable[[list[Any]], Any], device: torch.device,
) -> tuple[float, float, int]:  # fmt: skip
    """(accuracy, mean loss, labels) over the whole of ``dataset``, each label counted once: one a sample, or more.

    Rank r of W looks at the samples r, r + W, r + 2 W, ...: nothing is padded, and what the ranks found is added
    up, so the figures are those of one rank.
    """
    module = prepared.module
    module.eval()
    _agree_on_buffers(module)
    found = torch.zeros(3, dtype=torch.float64, device=device)  # right, loss, samples
    mine = range(world.rank, len(dataset), world.world_size)
    with torch.no_grad():
        for start in range(0, len(mine), batch_size):
            batch = collate([dataset[index] for index in mine[start : start + batch_size]])
            inputs, labels = (half.to(device) for half in inputs_and_labels(batch, dtype))
            scores = module(inputs)
            found[0] += (scores.argmax(1) == labels).sum()
            found[1] += functional.cross_entropy(scores, labels, reduction="sum").double()
            found[2] += labels.numel()
    right, loss, samples = prepared.total(found).tolist()
    return right / samples, loss / samples, int(samples)


def _average(gradients: list[torch.Tensor], total: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The mean over the ranks, in place; of gradients that are the same on all of them nothing changes."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        for gradient in gradients:
            gradient.copy_(total(gradient) / dist.get_world_size())


def _agree_on_buffers(module: nn.Module) -> None:
    """Those of rank 0, which a checkpoint has too: a batch norm's are each rank's own since its last batch."""
    if dist.is_initialized():
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)

"""Epochs in which ranks take different numbers of steps."""

from __future__ import annotations

import msgspec
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch.optim import Optimizer

from shardlab.collective import gather_bytes
from shardlab.config import flag
from shardlab.engine import _flatten
from shardlab.engine._flatten import OptimizerFacts
from shardlab.engine.loop import Feed
from shardlab.engine.trainee import Run
from shardlab.errors import UsageError


def may_be_uneven(run: Run, feed: Feed) -> bool:
    """Whether ranks may take different numbers of steps: those that are through have to answer the others then.

    Raises UsageError, on all ranks, where something is done together in certain steps.
    """
    if run.world.world_size == 1:
        return False
    most = run.job.config.max_steps
    steps = -1 if feed.length is None else min(feed.length, feed.length if most is None else most)
    known = {int(raw) for raw in gather_bytes(str(steps).encode(), to_all=True)}
    if run.job.config.tail != "keep" and len(known) == 1:
        return known == {-1}
    for name, alone in (("accumulation", 1), ("checkpoint_every", None)):
        value = getattr(run.train, name)
        if value != alone:
            raise UsageError(
                f"{flag(name)} needs ranks with equally many steps", value, cure="use --tail pad or drop"
            )
    return True


def share_optimizer(run: Run, optimizer: Optimizer, steps: int) -> None:
    """A rank that was through early stepped less often: give it the state of one that took every step.

    Its weights it has already.
    """
    every = [int(raw) for raw in gather_bytes(str(steps).encode(), to_all=True)]
    longest = every.index(max(every))
    if min(every) == max(every):
        return
    tensors, facts = _flatten.optimizer_parts(optimizer)
    mine = run.world.rank == longest
    raw = gather_bytes(bytes_of(tensors) if mine else b"", to_all=True)[longest]
    rest = gather_bytes(msgspec.json.encode(facts) if mine else b"", to_all=True)[longest]
    _flatten.optimizer_change(optimizer, tensors_of(raw), msgspec.json.decode(rest, type=OptimizerFacts))()

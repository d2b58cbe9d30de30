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

UNKNOWN = -1  # how many steps a stream has


def may_be_uneven(run: Run, feed: Feed) -> bool:
    """Whether ranks may take different numbers of steps: those that are through have to answer the others then.

    All ranks are held before the last step that all of them take: one that was held earlier than another would
    keep it waiting for gradients. Raises UsageError, on all ranks, where something is done together in certain
    steps.
    """
    if run.world.world_size == 1:
        return False
    last = UNKNOWN if feed.last is None else feed.last
    steps = UNKNOWN if feed.length is None else min(feed.length, last + 1)
    said = msgspec.json.encode((steps, last))
    every = [msgspec.json.decode(raw, type=tuple[int, int]) for raw in gather_bytes(said, to_all=True)]
    earliest = min(last for _, last in every)
    feed.held_before = None if earliest == UNKNOWN else earliest
    known = {steps for steps, _ in every}
    if run.job.config.tail != "keep" and len(known) == 1 and UNKNOWN not in known:
        return False
    _refuse_what_is_done_together(run, unknown=UNKNOWN in known)
    return True


def _refuse_what_is_done_together(run: Run, *, unknown: bool) -> None:
    """Ranks that end apart would wait for each other for ever, or leave out gradients of the others."""
    rule, cure = "needs ranks with equally many steps", "use --tail pad or drop"
    if unknown:
        rule += ", which nobody knows of a data path without a length"
        cure = "leave it out, or use a dataset that has a length"
    for name, alone in (("accumulation", 1), ("checkpoint_every", None)):
        value = getattr(run.train, name)
        if value != alone:
            raise UsageError(f"{flag(name)} {rule}", value, cure=cure)


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

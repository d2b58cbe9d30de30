"""Going on from a checkpoint: what of it means the same here, and what does not."""

from __future__ import annotations

from pathlib import Path

from torch.optim.lr_scheduler import StepLR

from shardlab.engine import checkpoint
from shardlab.engine.trainee import Run
from shardlab.errors import UsageError
from shardlab.framework import Prepared

ANY_RANKS = ("keyed", "ring", "sharded")
"""Data paths whose place in an epoch means the same on another number of ranks."""
INTERCHANGEABLE = ("keyed", "ring")


def resume(run: Run, prepared: Prepared, schedule: StepLR) -> None:
    """Take up model, optimiser, schedule, random states and the place in the data."""
    if run.job.control:
        return
    config = run.job.config
    path = Path(run.train.resume or "")
    if run.world.rank == 0:  # other nodes may not see it
        path = checkpoint.latest(path)
    place = checkpoint.load(path, prepared.module, prepared.plain_optimizer, schedule)
    if place.step:
        _refuse_another_place(place, config.sampler, run.world.world_size, config.batch_size)
        run.loader.load_state_dict(place.loader)
    old, new = (run.train.learning_rate(size) for size in (place.world_size, run.world.world_size))
    if old != new:
        schedule.base_lrs = [rate * new / old for rate in schedule.base_lrs]
        for group in prepared.plain_optimizer.param_groups:
            group["lr"] *= new / old
        schedule._last_lr = [group["lr"] for group in prepared.plain_optimizer.param_groups]
    run.first, run.first_step, run.global_step = place.epoch, place.step, place.global_step
    if run.first >= run.total:
        raise UsageError(
            "--epochs must be more than the checkpoint has", run.total, cure=f"--epochs {run.first + 1}"
        )


def _refuse_another_place(place: checkpoint.Place, sampler: str, world_size: int, batch_size: int) -> None:
    """A place in the middle of an epoch means something to some paths alone."""
    if place.sampler != sampler and not {place.sampler, sampler} <= set(INTERCHANGEABLE):
        raise UsageError("--sampler must be that of the checkpoint", sampler, [place.sampler])
    if place.sampler not in ANY_RANKS and (place.world_size, place.batch_size) != (world_size, batch_size):
        raise UsageError(
            f"--sampler {sampler} goes on in the middle of an epoch on as many ranks, with the same --batch-size",
            f"{world_size} ranks x {batch_size}, not {place.world_size} x {place.batch_size}",
            cure="the same numbers, or a checkpoint from the end of an epoch, or --sampler keyed",
        )

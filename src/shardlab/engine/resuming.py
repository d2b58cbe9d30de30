"""Going on from a checkpoint: what of it means the same here, and what does not."""

from __future__ import annotations

import os
from pathlib import Path

from torch.optim.lr_scheduler import StepLR

from shardlab import plugins
from shardlab.engine import _disk, checkpoint
from shardlab.engine._generators import random_change, random_parts
from shardlab.engine.trainee import Run
from shardlab.errors import UsageError
from shardlab.framework import Prepared


def refuse_what_fails_later(run: Run) -> bytes:
    """Raise UsageError now for what would be found out after an epoch: evaluation data, folder, data path."""
    train = run.train
    if run.job.control:
        return b""
    if train.checkpoint is not None and run.world.rank == 0:
        _refuse_folder(Path(train.checkpoint), is_new=train.resume is None)
    if train.checkpoint_every is not None and not hasattr(run.loader, "state_dict"):
        raise UsageError(
            "--checkpoint-every needs a data path with state_dict and load_state_dict", run.job.config.sampler,
            cure="leave it out: there is a checkpoint after each epoch",
        )  # fmt: skip
    if run.world.rank == 0:
        run.evaluation_data()
    return b""


def _refuse_folder(folder: Path, *, is_new: bool) -> None:
    found = _disk.finished(folder)
    if found and is_new:
        raise UsageError(
            "--checkpoint must be a folder without checkpoints of another run",
            f"{folder}, which has one of step {max(found)}",
            cure=f"go on with --resume {folder}, or name another folder",
        )  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("--checkpoint must be a folder that can be made", f"{folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError("--checkpoint must be a folder that can be written to", str(folder))


def resume(run: Run, prepared: Prepared, schedule: StepLR) -> None:
    """Take up model, optimiser, schedule, random states and the place in the data.

    The learning rate is what the flags say, after as many epochs of decay as were trained.
    """
    if run.job.control:
        return
    path = Path(run.train.resume or "")
    if run.world.rank == 0:  # other nodes may not see it
        path = checkpoint.latest(path)
    place = checkpoint.load(path, prepared.module, prepared.plain_optimizer, schedule)
    if place.epoch >= run.total:
        raise UsageError(
            "--epochs must be more than the checkpoint has", run.total, cure=f"--epochs {place.epoch + 1}"
        )
    if place.step:
        _refuse_another_place(place, run)
        run.loader.load_state_dict(place.loader)
    run.restore_random = random_change(random_parts(), 0)  # what comes before the next batch may draw from them
    _follow_the_flags(run, prepared, schedule)
    run.first, run.first_step, run.global_step = place.epoch, place.step, place.global_step


def _follow_the_flags(run: Run, prepared: Prepared, schedule: StepLR) -> None:
    wanted, decay = run.train.learning_rate(run.world.world_size), run.train.lr_decay
    if (schedule.base_lrs, schedule.gamma) == ([wanted] * len(schedule.base_lrs), decay):
        return
    schedule.base_lrs, schedule.gamma = [wanted] * len(schedule.base_lrs), decay
    for group in prepared.plain_optimizer.param_groups:
        group["initial_lr"], group["lr"] = wanted, wanted * decay**schedule.last_epoch
    schedule._last_lr = [group["lr"] for group in prepared.plain_optimizer.param_groups]


def _refuse_another_place(place: checkpoint.Place, run: Run) -> None:
    """A place in the middle of an epoch means something in the same order alone, and not to every path."""
    config, world_size = run.job.config, run.world.world_size
    known = plugins.find("datapath")
    kinds = [known[name].fact("PLACE") if name in known else None for name in (place.sampler, config.sampler)]
    if place.sampler != config.sampler and (kinds[0] is None or kinds[0] != kinds[1]):
        raise UsageError("--sampler must be that of the checkpoint", config.sampler, [place.sampler])
    own = {"seed": config.seed, "shuffle": config.shuffle, "tail": config.tail, "samples": run.job.facts.samples}
    for name, value in own.items():
        if value != getattr(place, name):
            raise UsageError(
                f"{name} must be that of the checkpoint in the middle of an epoch", value, [getattr(place, name)]
            )
    here, there = (world_size, config.batch_size), (place.world_size, place.batch_size)
    if kinds[0] is None and here != there:
        raise UsageError(
            f"--sampler {config.sampler} goes on in the middle of an epoch on as many ranks, with the same batches",
            f"{here[0]} ranks x {here[1]}, not {there[0]} x {there[1]}",
            cure="the same numbers, or a checkpoint from the end of an epoch, or --sampler keyed",
        )

"""Training on one rank: the epochs, their evaluation and checkpoints."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

from shardlab import plugins
from shardlab.collective import on_all
from shardlab.engine import checkpoint, model
from shardlab.engine._generators import seed
from shardlab.engine.job import Job
from shardlab.engine.loop import Feed
from shardlab.engine.resuming import refuse_what_fails_later, resume
from shardlab.engine.step import Training
from shardlab.engine.trainee import Run
from shardlab.engine.uneven import may_be_uneven, share_optimizer
from shardlab.framework import Prepared
from shardlab.index.permutation import key_of
from shardlab.measure.timer import StepTimer
from shardlab.store import Store
from shardlab.world import World


def run(job: Job, world: World, store: Store, loader: Any, device: torch.device) -> None:
    """Train as the job says, with the framework that it names."""
    assert job.train is not None
    torch.manual_seed(job.config.seed)  # the same weights on every rank
    module = model.build(job.train, job.facts.sample or {})
    seed(key_of(job.config.seed, world.rank))  # and not the same dropout
    training = Run(job, job.train, world, store, loader, device, module)
    on_all(world.world_size, lambda: refuse_what_fails_later(training), "training cannot begin")
    framework = plugins.find("framework")[job.train.framework].load()
    if hasattr(framework, "run"):  # it has a loop of its own
        framework.run(training)
    else:
        _epochs(training, framework.open)


def _epochs(run: Run, open_framework: Callable[..., Prepared]) -> None:
    prepared = open_framework(run.module, run.optimizer_of, run.world, run.device)
    schedule = StepLR(prepared.plain_optimizer, step_size=1, gamma=run.train.lr_decay)
    training = Training(prepared, run.dtype, run.train.accumulation)
    if run.train.resume is not None:
        resume(run, prepared, schedule)
    for number in range(run.first, run.total):
        rate = float(schedule.get_last_lr()[0])
        done_before = run.first_step if number == run.first else 0
        feed = run.epochs.begin(number, hold=number == run.total - 1, done_before=done_before)
        if number == run.first:
            feed.begun = run.restore_random
        asked = time.perf_counter()
        uneven = may_be_uneven(run, feed)
        feed.timer.other_s += time.perf_counter() - asked
        # Not only does join() warn of what is right here, it turns the warnings of all else on.
        with warnings.catch_warnings(), prepared.with_uneven_ends() if uneven else nullcontext():
            _train_on(feed, training, run, done_before, lambda step: _save(run, prepared, schedule, step))
        if uneven:
            share_optimizer(run, prepared.plain_optimizer, len(training.losses))
        with warnings.catch_warnings():  # of an epoch without a step on this rank, which is all right
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            schedule.step()
        _save(run, prepared, schedule, run.place(number + 1, 0, {}))  # first: an evaluation may fail
        run.ended(feed, training.losses, rate, run.evaluation(prepared), done_before)


def _train_on(
    feed: Feed, training: Training, run: Run, done_before: int, save: Callable[[Any], None]
) -> None:
    """One epoch, or the rest of it."""
    timer, every = feed.timer, run.train.checkpoint_every
    training.begin(feed.last + 1 if feed.last is not None else None)
    timer.comm_s = 0.0 if run.world.world_size > 1 else None  # alone there is nobody to talk to
    samples, is_due = 0, False
    for batch in feed:
        _count(timer, training.step(batch))
        del batch
        samples += run.job.config.batch_size
        run.epochs.progress.tell(run.world.local_rank, training.losses[-1], timer.wait_s, samples)
        run.global_step += 1
        done = done_before + len(training.losses)
        is_due = is_due or (every is not None and done % every == 0)
        if is_due and not training.pending:  # gradients that wait for the optimiser would be lost
            started, is_due = time.perf_counter(), False
            save(run.place(feed.epoch, done, run.loader.state_dict()))
            timer.other_s += time.perf_counter() - started
    _count(timer, training.finish())
    feed.end()


def _count(timer: StepTimer, seconds: tuple[float, float]) -> None:
    computing_s, communicating_s = seconds
    timer.compute_s += computing_s
    if timer.comm_s is not None:
        timer.comm_s += communicating_s


def _save(run: Run, prepared: Prepared, schedule: StepLR, place: checkpoint.Place) -> None:
    if run.train.checkpoint is not None and not run.job.control:
        folder = Path(run.train.checkpoint)
        checkpoint.save(folder, place, prepared.module, prepared.plain_optimizer, schedule)

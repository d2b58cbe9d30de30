"""Training on one rank: the epochs, their evaluation, checkpoints, and going on from one."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import default_collate

from shardlab import dataset, plugins
from shardlab.collective import gather_bytes
from shardlab.config import flag
from shardlab.dataset import DatasetSpec
from shardlab.engine import _flatten, checkpoint, model
from shardlab.engine._flatten import OptimizerFacts
from shardlab.engine.epochs import Epochs
from shardlab.engine.job import Job
from shardlab.engine.loop import Feed
from shardlab.engine.report import Learned
from shardlab.engine.step import Training, evaluate
from shardlab.errors import UsageError
from shardlab.framework import Prepared
from shardlab.index.permutation import key_of
from shardlab.store import Store
from shardlab.trainconfig import TrainConfig
from shardlab.world import World

ANY_RANKS = ("keyed", "ring", "sharded")
"""Data paths whose place in an epoch means the same on another number of ranks."""
INTERCHANGEABLE = ("keyed", "ring")


@dataclass
class Run:
    """All that training on this rank works with, whatever the framework; ``first`` is the first epoch, and
    ``first_step`` the steps of it that an earlier run has done."""

    job: Job
    train: TrainConfig
    world: World
    store: Store
    loader: Any
    device: torch.device
    module: torch.nn.Module
    first: int = 0
    first_step: int = 0
    global_step: int = 0
    epochs: Epochs = field(init=False)

    def __post_init__(self) -> None:
        self.epochs = Epochs(self.job, self.world, self.store, self.loader, self.device)

    @property
    def total(self) -> int:
        """How many epochs there are, those of an earlier run included."""
        return 2 if self.job.control else self.job.config.epochs

    @property
    def dtype(self) -> torch.dtype:
        """Of the model."""
        return model.dtype_of(self.train)

    def optimizer_of(self, parameters: Any) -> Optimizer:
        """AdamW at the first epoch's learning rate."""
        return AdamW(parameters, lr=self.train.learning_rate(self.world.world_size))

    def halves(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of a batch, as the model takes them."""
        return model.inputs_and_labels(batch, self.dtype)

    def evaluation_data(self) -> tuple[Any, Callable[[list[Any]], Any]] | None:
        """The evaluation dataset, opened anew, and what makes batches of it; None for none."""
        if self.train.eval_dataset == "none" or self.job.control:
            return None
        config = self.job.config
        data = dataset.open_dataset(DatasetSpec(self.train.eval_dataset, config.data_dir, config.seed))
        if not hasattr(data, "__len__") or not len(data):
            raise UsageError("--eval-dataset must have samples with indices", self.train.eval_dataset)
        return data, getattr(data, "collate_fn", default_collate)

    def evaluation(self, prepared: Prepared) -> tuple[float, float, int] | None:
        """(accuracy, loss, samples) over the evaluation dataset, which lies in memory meanwhile; None for none."""
        found = self.evaluation_data()
        if found is None:
            return None
        data, collate = found
        batch_size = self.job.config.batch_size
        return evaluate(prepared, data, batch_size, self.dtype, self.world, collate, self.device)

    def ended(
        self, feed: Feed, losses: list[float], rate: float, evaluated: tuple[float, float, int] | None,
        done_before: int = 0,
    ) -> None:  # fmt: skip
        """An epoch is through on this rank, with so many ``losses``: wait for the others and report."""
        figures = evaluated or (None, None, None)
        learned = Learned(done_before, rate, tuple(losses), feed.timer.accounted_ratio, *figures)
        timed = not self.job.control or feed.epoch == self.total - 1
        self.epochs.end(feed, timed=timed, learned=learned)


def run(job: Job, world: World, store: Store, loader: Any, device: torch.device) -> None:
    """Train as the job says, with the framework that it names."""
    assert job.train is not None
    if job.train.eval_dataset != "none":  # wrong: said now, and not after an epoch
        dataset.kind_of(DatasetSpec(job.train.eval_dataset, job.config.data_dir, job.config.seed))
    torch.manual_seed(job.config.seed)  # the same weights on every rank
    module = model.build(job.train, job.facts.sample or {})
    torch.manual_seed(key_of(job.config.seed, world.rank) % (1 << 63))  # and not the same dropout
    training = Run(job, job.train, world, store, loader, device, module)
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
        feed = run.epochs.begin(number, hold=number == run.total - 1)
        asked = time.perf_counter()
        uneven = _may_be_uneven(run, feed)
        feed.timer.other_s += time.perf_counter() - asked
        with prepared.with_uneven_ends() if uneven else nullcontext():
            _train_on(feed, training, run, done_before, lambda step: _save(run, prepared, schedule, step))
        if uneven:
            _share_optimizer(run, prepared.plain_optimizer, len(training.losses))
        with warnings.catch_warnings():  # of an epoch without a step on this rank, which is all right
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            schedule.step()
        run.ended(feed, training.losses, rate, run.evaluation(prepared), done_before)
        _save(run, prepared, schedule, checkpoint.Place(*_at(run, number + 1, 0), {}))


def _train_on(
    feed: Feed, training: Training, run: Run, done_before: int, save: Callable[[Any], None]
) -> None:
    """One epoch, or the rest of it."""
    timer, every = feed.timer, run.train.checkpoint_every
    training.begin(feed.last + 1 if feed.last is not None else None)
    timer.comm_s = 0.0 if run.world.world_size > 1 else None  # alone there is nobody to talk to
    samples, is_due = 0, False
    for batch in feed:
        compute_s, comm_s = training.step(batch)
        timer.compute_s += compute_s
        if timer.comm_s is not None:
            timer.comm_s += comm_s
        del batch
        samples += run.job.config.batch_size
        run.epochs.progress.tell(run.world.local_rank, training.losses[-1], timer.wait_s, samples)
        run.global_step += 1
        done = done_before + len(training.losses)
        is_due = is_due or (every is not None and done % every == 0)
        if is_due and not training.pending:  # gradients that wait for the optimiser would be lost
            started, is_due = time.perf_counter(), False
            save(checkpoint.Place(*_at(run, feed.epoch, done), run.loader.state_dict()))
            timer.other_s += time.perf_counter() - started
    feed.end()


def _may_be_uneven(run: Run, feed: Feed) -> bool:
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


def _share_optimizer(run: Run, optimizer: Optimizer, steps: int) -> None:
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


def _at(run: Run, epoch: int, step: int) -> tuple[str, int, int, int, int, int, str, int]:
    config = run.job.config
    return (
        run.job.run_id, epoch, step, run.global_step, run.world.world_size, config.batch_size, config.sampler,
        config.seed,
    )  # fmt: skip


def _save(run: Run, prepared: Prepared, schedule: StepLR, place: checkpoint.Place) -> None:
    if run.train.checkpoint is not None and not run.job.control:
        folder = Path(run.train.checkpoint)
        checkpoint.save(folder, place, prepared.module, prepared.plain_optimizer, schedule)


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

"""What training on a rank works with, whatever the framework: the job, the data path, the model, the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import AdamW, Optimizer
from torch.utils.data import default_collate

from shardlab import dataset
from shardlab.dataset import DatasetSpec
from shardlab.engine import model
from shardlab.engine.checkpoint import Place
from shardlab.engine.epochs import Epochs
from shardlab.engine.job import Job
from shardlab.engine.loop import Feed
from shardlab.engine.report import Learned
from shardlab.engine.step import evaluate
from shardlab.errors import UsageError
from shardlab.framework import Prepared
from shardlab.store import Store
from shardlab.trainconfig import TrainConfig
from shardlab.world import World


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
    restore_random: Callable[[], None] | None = None  # generators as they were, once skipped batches are read
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

    def place(self, epoch: int, step: int, loader: dict[str, int]) -> Place:
        """Where this run is, for a checkpoint."""
        config = self.job.config
        return Place(
            self.job.run_id, epoch, step, self.global_step, self.world.world_size, config.batch_size,
            config.sampler, config.seed, loader, self.job.facts.samples, config.shuffle, config.tail,
        )  # fmt: skip

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

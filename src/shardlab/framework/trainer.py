"""transformers.Trainer, with its own loop and its own evaluation (an extra)."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from shardlab.errors import RunFailed, UsageError
from shardlab.framework._lent import Group, Loop, Training, steps_of

try:
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging as said
except ImportError as error:
    raise UsageError(
        "--framework trainer needs transformers, which is an extra", str(error),
        cure="pip install 'shardlab[trainer]'",
    ) from None  # fmt: skip

NEEDS = {"transformers": "pip install 'shardlab[trainer]'"}
TAILS = ("pad", "drop")
REFUSES = {
    "checkpoint": "Trainer pickles what it saves",
    "resume": "Trainer unpickles what it loads",
}


def run(training: Training) -> None:
    """All epochs, by Trainer."""
    said.set_verbosity(logging.ERROR)
    steps = steps_of(training)
    module = Classifier(training.module.to(training.device))
    optimizer = training.optimizer_of(module.parameters())
    updates = -(-steps // training.train.accumulation)  # of an epoch; Trainer advances the schedule at each
    schedule = StepLR(optimizer, step_size=updates, gamma=training.train.lr_decay)
    devices = [training.device] if training.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # Trainer seeds anew, and dropout would be another one
        trainer = OurTrainer(Loop(training, steps, schedule), module, arguments(training), optimizer)
    if trainer.accelerator.num_processes != training.world.world_size:
        raise RunFailed(
            f"Trainer believes to be one of {trainer.accelerator.num_processes} processes, and "
            f"{training.world.world_size} ranks train: their gradients would not be averaged"
        )
    trainer.train()


def arguments(training: Training) -> TrainingArguments:
    """Trainer's flags: as the other frameworks train, in silence, and nothing saved."""
    config, on_cpu = training.job.config, training.device.type == "cpu"
    return TrainingArguments(
        output_dir=str(training.job.folder / "trainer"),
        num_train_epochs=training.total,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        gradient_accumulation_steps=training.train.accumulation,
        max_grad_norm=0.0,
        seed=torch.initial_seed() % (1 << 32),  # other for each rank: numpy's and Python's generators get it
        use_cpu=on_cpu,
        ddp_backend="gloo" if on_cpu else None,
        ddp_find_unused_parameters=False,
        label_names=["labels"],
        remove_unused_columns=False,
        save_strategy="no",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
    )


class Classifier(nn.Module):
    """A model with the loss that Trainer wants it to have."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """``logits`` (batch, classes) and their mean ``loss``."""
        scores = self.inner(inputs)
        return {"loss": functional.cross_entropy(scores, labels), "logits": scores}


class OurTrainer(Trainer):
    """Trainer on a data path of ours. Its loop, its optimiser steps and its evaluation are its own."""

    def __init__(self, loop: Loop, model: nn.Module, args: TrainingArguments, optimizer: Optimizer) -> None:
        self.loop = loop
        super().__init__(
            model,
            args,
            optimizers=(optimizer, loop.schedule),
            compute_metrics=figures,
            preprocess_logits_for_metrics=right_and_loss,
        )
        self.remove_callback(PrinterCallback)
        self.add_callback(Ends(self))

    def get_train_dataloader(self) -> Any:
        return self.loop

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, *_: Any) -> tuple[Any, None]:
        return Group(epoch_iterator, num_batches), None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        self.loop.step_begins()
        if not self.loop.losses and self.loop.epoch == 0:
            self.loop.exchange.watch(model)
        loss = super().training_step(model, self._named(inputs.pop("batch")), num_items_in_batch)
        self.loop.gradients_are_there(float(loss) * self.current_gradient_accumulation_steps)
        return loss

    def evaluated(self) -> tuple[float, float, int] | None:
        """(accuracy, loss, samples) by Trainer's ``evaluate``; None where there is nothing to evaluate on."""
        found = self.loop.training.evaluation_data()
        if found is None:
            return None
        data, collate = found
        self.data_collator = lambda samples: self._named(collate(samples))
        of = self.evaluate(data)
        self._forget_evaluation()
        return of["eval_accuracy"], of["eval_mean_loss"], int(of["eval_samples"])

    def _named(self, batch: Any) -> dict[str, torch.Tensor]:
        inputs, labels = self.loop.training.halves(batch)
        return {"inputs": inputs, "labels": labels}

    def _forget_evaluation(self) -> None:
        """Else the evaluation dataset stays in memory, a copy in each rank, one more after every epoch."""
        self.data_collator = self._named
        self.callback_handler.eval_dataloader = None
        self.accelerator._dataloaders.clear()


class Ends(TrainerCallback):
    """Tells the loop when Trainer is through with a step, with or without the optimiser's, and an epoch."""

    def __init__(self, trainer: OurTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.loop.step_ends()

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self.trainer.loop.step_ends()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.trainer.loop.epoch_ends(self.trainer.evaluated)


def right_and_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """For each sample whether it was told right, and its loss, shape (batch, 2): less to gather than scores.

    Trainer's own ``eval_loss`` is a mean of batches, the padded one among them: not the mean over the samples.
    """
    loss = functional.cross_entropy(scores, labels, reduction="none").double()
    return torch.stack([(scores.argmax(1) == labels).double(), loss], 1)


def figures(found: Any) -> dict[str, float]:
    """Of all samples on all ranks, those dropped again that a last batch was filled with."""
    accuracy, loss = found.predictions.mean(0)
    return {"accuracy": float(accuracy), "mean_loss": float(loss), "samples": len(found.predictions)}

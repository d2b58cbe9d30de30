"""The same under transformers.Trainer: torchrun --nproc-per-node 2 experiments/ladder/trainer.py"""

import tempfile

import numpy as np
import torch
from mnist import BATCH, LEARNING_RATE, images, network
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments


class WithLoss(torch.nn.Module):
    """Trainer wants the loss from the model."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, inputs, labels):
        scores = self.network(inputs)
        return {"loss": cross_entropy(scores, labels), "logits": scores}


def collate(samples):
    """Batches by name."""
    inputs, labels = zip(*samples, strict=True)
    return {"inputs": torch.stack(inputs), "labels": torch.tensor(labels)}


def metrics(found):
    """Named figures of an evaluation."""
    right = found.predictions.argmax(1) == found.label_ids
    return {"accuracy": float(np.mean(right)), "seen": len(right)}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=1, per_device_train_batch_size=BATCH, learning_rate=LEARNING_RATE, use_cpu=True,
        ddp_backend="gloo", lr_scheduler_type="constant", report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        WithLoss(), arguments, train_dataset=images(train=True), eval_dataset=images(train=False),
        data_collator=collate, compute_metrics=metrics,
    )  # fmt: skip
    trainer.train()
    found = trainer.evaluate()
if trainer.is_world_process_zero():
    print(f"{found['eval_accuracy']:.4f} of {found['eval_seen']}")

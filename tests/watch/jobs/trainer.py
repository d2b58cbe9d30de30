"""A Trainer script as people write it: every rank loads the array and trains on it."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--mb", type=int, default=64)
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=Path, required=True, help="end once this file is there")
args = parser.parse_args()


class Rows(Dataset):
    def __init__(self, n):
        self.rows = np.random.default_rng(0).random((n, 1024), dtype=np.float32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = torch.from_numpy(self.rows[index])
        return {"rows": row, "labels": row.sum()}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1)

    def forward(self, rows, labels):
        out = self.layer(rows).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


class Until(TrainerCallback):
    def on_step_end(self, arguments, state, control, **more):
        over = torch.tensor([float(args.until.exists())])
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(over)
        control.should_training_stop = bool(over)


trainer = Trainer(
    Model(),
    TrainingArguments(
        args.out, per_device_train_batch_size=64, num_train_epochs=1000, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True,
    ),
    train_dataset=Rows(args.mb * 256),
    callbacks=[Until()],
)  # fmt: skip
trainer.train()

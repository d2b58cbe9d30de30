"""An array that forked workers share, in batches so large that those on their way outweigh it."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--mb", type=int, default=32)
parser.add_argument("--batch-size", type=int, default=4096)
parser.add_argument("--prefetch", type=int, default=4)
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--until", type=Path, required=True, help="end once this file is there")
args = parser.parse_args()


class Rows(Dataset):
    def __init__(self, n):
        self.rows = np.random.default_rng(0).random((n, 512), dtype=np.float32)

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index % len(self.rows)])


loader = DataLoader(
    Rows(args.mb * 512), args.batch_size, num_workers=args.workers, prefetch_factor=args.prefetch,
    multiprocessing_context="fork",
)  # fmt: skip
for batch in loader:
    batch.sum()
    time.sleep(1.5)
    if args.until.exists():
        break

"""Ranks with an array of floats each, as ``--how`` says: built by each, different in each, mapped from a file."""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=["built", "different", "mapped", "dispatched"])
parser.add_argument("--mb", type=int, default=64)
parser.add_argument("--file", default="")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--until", type=Path, required=True, help="end once this file is there")
args = parser.parse_args()

rank = int(os.environ["RANK"])
shape = (args.mb * 256, 1024)
if args.how == "mapped":
    data = np.load(args.file, mmap_mode="r")
else:
    seed = rank if args.how == "different" else 0
    data = np.random.default_rng(seed).random(shape, dtype=np.float32)

loader = DataLoader(TensorDataset(torch.from_numpy(data)), 64, shuffle=True, num_workers=args.workers)
if args.how == "dispatched":
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    loader = accelerator.prepare(loader)
else:
    dist.init_process_group("gloo")
over = torch.zeros(1)
while not over:
    for (batch,) in loader:
        batch.sum()
    over[0] = args.until.exists()
    dist.all_reduce(over)
dist.barrier()
dist.destroy_process_group()

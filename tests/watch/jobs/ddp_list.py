"""Training as people write it: each rank makes a list of strings, and its workers are forked."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--strings", type=int, default=300_000)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--until", type=Path, required=True, help="end once this file is there")
args = parser.parse_args()


class Texts(Dataset):
    def __init__(self, n):
        self.texts = [f"{i:08d}" + "x" * 92 for i in range(n)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return torch.tensor([float(len(self.texts[index]))])


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1, 1))
data = Texts(args.strings)
sampler = DistributedSampler(data)
loader = DataLoader(
    data, 500, sampler=sampler, num_workers=args.workers, persistent_workers=args.workers > 0,
    multiprocessing_context="fork" if args.workers else None,
)  # fmt: skip
over = torch.zeros(1)
epoch = 0
while not over:
    sampler.set_epoch(epoch)
    for batch in loader:
        model(batch).mean().backward()
    epoch += 1
    time.sleep(0.5)
    over[0] = args.until.exists()
    dist.all_reduce(over)
dist.destroy_process_group()

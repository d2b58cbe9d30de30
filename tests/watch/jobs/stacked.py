"""Each rank makes a list of tensors and stacks them: the list is freed, and the allocator keeps its memory."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--mb", type=int, default=128)
parser.add_argument("--until", type=Path, required=True, help="end once this file is there")
args = parser.parse_args()


def read(n):
    draw = torch.Generator().manual_seed(0)
    samples = [torch.rand(4096, generator=draw) for _ in range(n)]
    return torch.stack(samples)


dist.init_process_group("gloo")
loader = DataLoader(TensorDataset(read(args.mb * 64)), 64, shuffle=True)
over = torch.zeros(1)
while not over:
    for (batch,) in loader:
        batch.sum()
    over[0] = args.until.exists()
    dist.all_reduce(over)
dist.barrier()
dist.destroy_process_group()

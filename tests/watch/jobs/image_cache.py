"""A cache of decoded images as a list of arrays in each rank, and workers of a forkserver, to which it is pickled."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, n):
        draw = np.random.default_rng(0)
        self.images = [draw.integers(0, 256, (140, 143, 3), np.uint8) for _ in range(n)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.from_numpy(self.images[index])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--until", type=Path, required=True, help="end once this file is there")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    loader = DataLoader(
        Images(args.images), 8, num_workers=args.workers, persistent_workers=True,
        multiprocessing_context="forkserver",
    )  # fmt: skip
    over = torch.zeros(1)
    while not over:
        for batch in loader:
            batch.float().sum()
        over[0] = args.until.exists()
        dist.all_reduce(over)
    dist.barrier()
    dist.destroy_process_group()

"""What one writes without shardlab: DistributedSampler, DataLoader, every byte of every batch read; for torchrun.

``torchrun --nproc-per-node 4 experiments/bare_loop.py DATASET BATCH EPOCHS``; beside_torchrun.py times it.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from shardlab.dataset import DatasetSpec, open_dataset

WORD_BYTES = 8


def main(dataset: str, batch: int, epochs: int) -> None:
    """One rank."""
    dist.init_process_group("gloo")
    data = open_dataset(DatasetSpec(dataset))
    sampler: DistributedSampler[int] = DistributedSampler(data)
    loader = DataLoader(data, batch, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dist.barrier()
        read = sum(every_byte(images) for images in loader)
        dist.barrier()
    if dist.get_rank() == 0:
        print(f"{epochs} epochs of {len(loader)} steps, sum of the last {read}")
    dist.destroy_process_group()


def every_byte(images: torch.Tensor) -> int:
    """A sum over all bytes of a batch, by eight as shardlab reads them: a sum of single bytes takes much longer."""
    raw = images.reshape(-1).view(torch.uint8)
    words = raw.numel() // WORD_BYTES * WORD_BYTES
    return int(raw[:words].view(torch.int64).sum()) + int(raw[words:].sum())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

"""A training script as people write it, and the same with three lines changed.

    torchrun --nproc-per-node 4 experiments/three_lines.py --feed plain
    torchrun --nproc-per-node 4 experiments/three_lines.py --feed keyed      (or ring)

Unshuffled, and with the incomplete last round dropped, the loss curve is the same: both give rank r its own
samples of each global batch. The plain script gives rank r the samples r, r + W, r + 2 W, ...; ours gives it a
contiguous part of each global batch. So the global batches are the same sets, and DDP averages over them.
Rank 0 prints one JSON object: the loss of each step, averaged over the ranks, and how many ranks built the
dataset.
"""

from __future__ import annotations

import argparse
import json

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import shardlab

SAMPLES, FEATURES, BATCH, EPOCHS = 4003, 64, 32, 2
built = 0


def build() -> TensorDataset:
    """The dataset as a script makes it: every process that calls this holds a copy."""
    global built
    built += 1
    source = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.rand(SAMPLES, FEATURES, generator=source), torch.rand(SAMPLES, 1, generator=source)
    )


def train(feed: str) -> None:
    """Train a linear model under DDP and print what came of it."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if feed == "plain":
        dataset = build()
        sampler = DistributedSampler(dataset, shuffle=False, drop_last=True)
        loader = DataLoader(dataset, BATCH, sampler=sampler, drop_last=True)
    else:
        dataset = shardlab.share(build)
        loader = sampler = shardlab.loader(dataset, BATCH, sampler=feed, shuffle=False, tail="drop")
    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
    curve = torch.stack(losses)
    dist.all_reduce(curve, op=dist.ReduceOp.SUM)
    copies = torch.tensor([built])
    dist.all_reduce(copies)
    if dist.get_rank() == 0:
        averages = (curve / dist.get_world_size()).tolist()
        print(json.dumps({"feed": feed, "steps": len(loader), "built": int(copies), "losses": averages}))
    if feed != "plain":
        loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--feed", choices=["plain", "keyed", "ring"], default="plain")
    train(parser.parse_args().feed)

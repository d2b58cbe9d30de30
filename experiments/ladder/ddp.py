"""The same under DistributedDataParallel: torchrun --nproc-per-node 2 experiments/ladder/ddp.py"""

import torch
import torch.distributed as dist
from mnist import BATCH, LEARNING_RATE, images, network
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
train_set, test_set = images(train=True), images(train=False)
sampler = DistributedSampler(train_set)
train_loader = DataLoader(train_set, BATCH, sampler=sampler)
test_loader = DataLoader(Subset(test_set, range(rank, len(test_set), world_size)), BATCH)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)

sampler.set_epoch(0)
for inputs, labels in train_loader:
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()

model.eval()
counts = torch.zeros(2, dtype=torch.int64)
with torch.no_grad():
    for inputs, labels in test_loader:
        counts[0] += (model.module(inputs).argmax(1) == labels).sum()
        counts[1] += len(labels)
dist.all_reduce(counts)
if rank == 0:
    print(f"{counts[0] / counts[1]:.4f} of {counts[1]}")
dist.destroy_process_group()

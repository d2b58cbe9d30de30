"""What the scripts of the ladder share: the data, the model, the numbers. It is not counted as theirs."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.utils.data import Dataset, Subset
from torchvision import transforms
from torchvision.datasets import MNIST

FOLDER = os.environ.get("SHARDLAB_DATA", "data")
FEWER = int(os.environ.get("LADDER_SAMPLES", "60000"))  # for a quick look
BATCH, LEARNING_RATE = 64, 1e-3


def images(*, train: bool) -> Dataset[tuple[torch.Tensor, int]]:
    """A split of MNIST, downloaded where it is missing."""
    change = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    split = MNIST(FOLDER, train=train, transform=change, download=True)
    return Subset(split, range(min(FEWER, len(split))))


def network() -> nn.Module:
    """Two convolutions, two linear layers, dropout after each pair."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.25),
        nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip

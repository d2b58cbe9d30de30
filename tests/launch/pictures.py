"""Pictures with labels and a small model, as a user's file holds them: for runs that train in a second or two."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

MANY, FEW = 81920, 1000
"""MANY pictures of 784 bytes and their labels are 62 MiB: a copy of them stands out from what a run wavers by."""


def many() -> TensorDataset:
    """What is trained on."""
    return _pictures(MANY, seed=0)


def few() -> TensorDataset:
    """What is evaluated."""
    return _pictures(FEW, seed=1)


def linear() -> nn.Module:
    """The quickest model for them."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def _pictures(count: int, seed: int) -> TensorDataset:
    """Noise, and two bright rows for the label: images of shape (count, 1, 28, 28), uint8."""
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 128, (count, 1, 28, 28), dtype=torch.uint8, generator=source)
    labels = torch.randint(0, 10, (count,), generator=source)
    rows = 2 * labels.view(-1, 1) + torch.arange(2)
    images[torch.arange(count).view(-1, 1), 0, rows] += 127
    return TensorDataset(images, labels)

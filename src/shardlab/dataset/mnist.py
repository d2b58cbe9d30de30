"""mnist[:train|:test], from --data-dir, SHARDLAB_DATA or ./data, downloaded where missing."""

from __future__ import annotations

from typing import Any

from torchvision.datasets import MNIST

from shardlab.dataset._spec import DatasetSpec
from shardlab.dataset._torchvision import open_split

MEAN, STD = 0.1307, 0.3081


def open(args: str, spec: DatasetSpec) -> Any:
    """torchvision's own dataset, its images and labels held in memory."""
    return open_split(MNIST, args, spec, MEAN, STD)

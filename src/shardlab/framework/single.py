"""plain PyTorch, one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from shardlab.framework._prepared import Prepared
from shardlab.world import World

SEVERAL_RANKS = False


def open(
    model: nn.Module, optimizer_of: Callable[[Any], Optimizer], _world: World, device: torch.device
) -> Prepared:
    """The model on its device, and nothing around it."""
    model = model.to(device)
    optimizer = optimizer_of(model.parameters())
    return Prepared(model, model, optimizer, optimizer)

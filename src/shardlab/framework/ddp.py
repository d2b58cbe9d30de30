"""torch's DistributedDataParallel: gradients are averaged over the ranks while they are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from shardlab.framework._prepared import Prepared
from shardlab.world import World


def open(
    model: nn.Module, optimizer_of: Callable[[Any], Optimizer], _world: World, device: torch.device
) -> Prepared:
    """The model wrapped, the optimiser on the wrapped model. The process group is up already."""
    model = model.to(device)
    wrapped = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = optimizer_of(wrapped.parameters())
    return Prepared(wrapped, model, optimizer, optimizer)

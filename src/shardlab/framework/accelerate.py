"""Hugging Face Accelerate: prepare, accelerator.backward, the counts of the metrics reduced over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

from shardlab.errors import RunFailed
from shardlab.framework._prepared import Prepared
from shardlab.world import World


def open(
    model: nn.Module, optimizer_of: Callable[[Any], Optimizer], world: World, device: torch.device
) -> Prepared:
    """Model and optimiser through ``prepare``.

    The loader is not: it is a data path that has its share of the samples already, and would be sharded twice.
    Nor is the schedule, which Accelerate would advance once for each rank.
    """
    accelerator = Accelerator(cpu=device.type == "cpu")
    if accelerator.num_processes != world.world_size:
        raise RunFailed(
            f"Accelerate believes to be one of {accelerator.num_processes} processes, and {world.world_size} "
            "ranks train: their gradients would not be averaged"
        )
    optimizer = optimizer_of(model.parameters())
    prepared, stepped = accelerator.prepare(model, optimizer)
    return Prepared(
        prepared,
        accelerator.unwrap_model(prepared),
        stepped,
        optimizer,
        accelerator.backward,
        total=lambda figures: accelerator.reduce(figures, "sum"),
    )

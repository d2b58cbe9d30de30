"""Batches that a rank holds: memory that is equal in ranks and no copy of the dataset.

A loader that dispatches sends one batch to all ranks. By its content it looks like a copy of a part of the dataset,
so a census passes over it, in the run and in its control.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from shardlab.dataset._walk import Span, spans_of


def batches_in_hand(dataset: Any, most_bytes: int) -> list[Span]:
    """Addresses [start, stop) of the tensors of this process that are no part of ``dataset``, ascending.

    Batches that a loader has read ahead are among them. Tensors of more than ``most_bytes`` are no batches.
    """
    found: set[Span] = set()
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor) and item.device.type == "cpu" and item.layout == torch.strided:
            storage = item.untyped_storage()
            if 0 < storage.nbytes() <= most_bytes:
                found.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    kept = spans_of(dataset)
    return sorted(span for span in found if not any(span[0] < stop and start < span[1] for start, stop in kept))

"""What the loop does with a batch: move it, read every byte of it, size it, compute on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shardlab.config import compute_seconds
from shardlab.ring.codec import as_bytes


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """All tensors of a nested batch; arrays come as tensors of the same bytes."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, np.ndarray) and not batch.dtype.hasobject:
        yield _as_tensor(batch)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from tensors(value)


def _as_tensor(array: NDArray[Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # texts, dates, another byte order, a negative stride: its bytes
        return torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch on ``device``; the same object where it is there already."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [to_device(value, device) for value in batch]
    return batch


def read_every_byte(batch: Any) -> tuple[int, int]:
    """(bytes, a sum over all of them) of a batch's tensors: views and maps cost nothing until they are read.

    Words of 8 bytes are added, which runs at the speed of memory; a sum of single bytes does not.
    """
    nbytes = total = 0
    for tensor in tensors(batch):
        nbytes += tensor.nbytes
        if tensor.device.type != "cpu":
            total += int(tensor.reshape(-1).view(torch.uint8).sum())
            continue
        raw = as_bytes(tensor)
        words = raw.size // 8 * 8
        total += int(np.add.reduce(raw[:words].view(np.int64)))
        if words < raw.size:
            total += int(np.add.reduce(raw[words:]))
    return nbytes, total


def computation(kind: str, device: torch.device) -> Callable[[Any], None] | None:
    """The work after each batch that ``--compute`` names; ``None`` for none.

    A pause sleeps: an accelerator is busy while its processor is free. ``cnn`` trains a small network on the
    processor or accelerator of the rank, without exchanging gradients.
    """
    seconds = compute_seconds(kind)
    if seconds is None:
        return _Cnn(device)
    if seconds == 0:
        return None
    return lambda _batch: time.sleep(seconds)


class _Cnn:
    """One training step of a small convolutional network on whatever numbers a batch holds."""

    SIDE = 28

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 6 * 6, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        ).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def __call__(self, batch: Any) -> None:
        first = next(tensors(batch), None)
        if first is None or not first.dim() or not first.numel():  # a dispatched rank may get nothing
            return
        pixels = first.reshape(first.shape[0], -1)[:, : self.SIDE**2].float()
        pixels = nn.functional.pad(pixels, (0, self.SIDE**2 - pixels.shape[1]))
        images = pixels.reshape(-1, 1, self.SIDE, self.SIDE)  # images: (batch, 1, side, side)
        loss = self.model(images).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

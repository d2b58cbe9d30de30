"""Bytes between ranks over the process group. What goes over is JSON or raw numbers: nothing is unpickled."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist


def gather_bytes(mine: bytes, *, to_all: bool = False) -> list[bytes]:
    """Every rank's bytes, by rank, on rank 0 (on all ranks with ``to_all``); an empty list elsewhere."""
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)]))
    longest = max(1, max(int(size) for size in sizes))
    padded = _tensor(mine.ljust(longest, b"\0"))
    every = [torch.empty(longest, dtype=torch.uint8) for _ in sizes]
    if to_all:
        dist.all_gather(every, padded)
    else:
        dist.gather(padded, every if dist.get_rank() == 0 else None)
        if dist.get_rank() != 0:
            return []
    return [raw[: int(size)].numpy().tobytes() for raw, size in zip(every, sizes, strict=True)]


def broadcast_bytes(mine: bytes) -> bytes:
    """Rank 0's bytes, on every rank."""
    size = torch.tensor([len(mine)])
    dist.broadcast(size, 0)
    raw = _tensor(mine) if dist.get_rank() == 0 else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(raw, 0)
    return raw.numpy().tobytes()


def _tensor(raw: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(raw, np.uint8).copy())

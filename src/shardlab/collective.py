"""Bytes between ranks over the process group. What goes over is JSON or raw numbers: nothing is unpickled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from shardlab.errors import RunFailed


def gather_bytes(mine: bytes, *, to_all: bool = False) -> list[bytes]:
    """Every rank's bytes, by rank, on rank 0 (on all ranks with ``to_all``); an empty list elsewhere."""
    device = _device()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)], device=device))
    longest = max(1, max(int(size) for size in sizes))
    padded = _tensor(mine.ljust(longest, b"\0")).to(device)
    every = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in sizes]
    if to_all:
        dist.all_gather(every, padded)
    else:
        dist.gather(padded, every if dist.get_rank() == 0 else None)
        if dist.get_rank() != 0:
            return []
    return [raw[: int(size)].cpu().numpy().tobytes() for raw, size in zip(every, sizes, strict=True)]


def broadcast_bytes(mine: bytes) -> bytes:
    """Rank 0's bytes, on every rank."""
    device = _device()
    size = torch.tensor([len(mine)], device=device)
    dist.broadcast(size, 0)
    raw = _tensor(mine) if dist.get_rank() == 0 else torch.empty(int(size), dtype=torch.uint8)
    raw = raw.to(device)
    dist.broadcast(raw, 0)
    return raw.cpu().numpy().tobytes()


def on_all(world_size: int, mine: Callable[[], bytes], failed: str) -> list[bytes]:
    """What ``mine()`` is on each rank. Where it raises on one, all raise: nobody waits for a rank that is gone."""
    if world_size == 1:
        return [mine()]
    error: Exception | None = None
    try:
        said = b"+" + mine()
    except Exception as raised:
        error = raised
        said = f"!{failed}: {type(raised).__name__}: {raised}".encode()
    every = gather_bytes(said, to_all=True)
    if error is not None:
        raise error
    for of_rank in every:
        if of_rank.startswith(b"!"):
            raise RunFailed(of_rank[1:].decode())
    return [of_rank[1:] for of_rank in every]


def _tensor(raw: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(raw, np.uint8).copy())


def _device() -> torch.device:
    """Where the group can take bytes from: memory, or the accelerator's where its backend knows no other."""
    if "cpu:" in dist.get_backend_config():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())

"""Datasets with which something goes wrong, as a user's file would hold them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

SAMPLES = 4000


class Troubled(Dataset[Any]):
    """Samples of one number. Each rank says once who it is; ``trouble(index)`` may do anything."""

    def __init__(self, trouble: Callable[[int], Any], samples: int = SAMPLES) -> None:
        self.trouble = trouble
        self.samples = samples
        self.said = False

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        if not self.said:
            self.said = True
            say_who_reads()
        return self.trouble(index)


def say_who_reads() -> None:
    """``rank-N`` holds the process of rank N, there as a whole or not at all."""
    rank, folder = os.environ.get("RANK"), os.environ.get("SHARDLAB_TEST_CALLS")
    if rank is not None and folder is not None:
        path = Path(folder) / f"rank-{rank}"
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(str(os.getpid()))
        partial.rename(path)


def sample(index: int) -> torch.Tensor:
    """No trouble at all."""
    return torch.full((1000,), index % 256, dtype=torch.uint8)


def calm() -> Troubled:
    """Nothing happens."""
    return Troubled(sample)


def hanging() -> Troubled:
    """Rank 1 never gets its first sample."""
    return Troubled(_hang)


def deaf() -> Troubled:
    """Rank 1 never gets its first sample, nor a signal."""
    return Troubled(_turn_deaf)


def raising() -> Troubled:
    """Rank 2 fails at its first sample."""
    return Troubled(_raise)


def failing_on_1() -> Troubled:
    """Rank 1 fails at its first sample."""
    return Troubled(_raise_on_1)


def handing_over() -> Troubled:
    """Workers are in the middle of handing over a batch, which lies in shared memory under a name."""
    return Troubled(_handed_over)


def only_0() -> Troubled:
    """Nothing to read."""
    return Troubled(sample, samples=0)


def only_1() -> Troubled:
    """One sample."""
    return Troubled(sample, samples=1)


def only_3() -> Troubled:
    """Fewer samples than ranks."""
    return Troubled(sample, samples=3)


def naming() -> Troubled:
    """A field is a string."""
    return Troubled(_named, samples=64)


def growing() -> Troubled:
    """Samples differ in length."""
    return Troubled(_grown, samples=64)


def failing_factory() -> Any:
    """A factory that raises."""
    raise OSError("the drive is not there")  # factory's line


def failing_in_rank_0() -> Any:
    """A factory that raises where rank 0 calls it, not where it is sized."""
    if os.environ.get("RANK") == "0":
        raise OSError("the drive is not there")
    return calm()


def endless_factory() -> Any:
    """A factory that waits for something."""
    time.sleep(3600)


def forgetful_factory() -> Any:
    """A factory without a return."""


def _handed_over(index: int) -> torch.Tensor:
    if get_worker_info() is not None:
        Path(f"/dev/shm/torch_{os.getpid()}_1_1").touch()
    return sample(index)


def _hang(index: int) -> torch.Tensor:
    if os.environ.get("RANK") == "1":
        time.sleep(3600)
    return sample(index)


def _turn_deaf(index: int) -> torch.Tensor:
    if os.environ.get("RANK") == "1":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # as a call into C that never returns
    return _hang(index)


def _raise(index: int) -> torch.Tensor:
    if os.environ.get("RANK") == "2":
        raise ValueError("this sample is rotten")  # sample's line
    return sample(index)


def _raise_on_1(index: int) -> torch.Tensor:
    if os.environ.get("RANK") == "1":
        raise ValueError("this sample is rotten")
    return sample(index)


def _named(index: int) -> dict[str, Any]:
    return {"image": sample(index), "file": f"{index}.png"}


def _grown(index: int) -> dict[str, Any]:
    return {"image": sample(index), "tokens": torch.zeros(1 + index)}

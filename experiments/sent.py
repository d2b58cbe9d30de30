"""Bytes a second, and processor seconds, of batches that another process sends; this one reads every byte of them.

    python experiments/sent.py FORM BATCH_BYTES             prints {"bytes_per_s": ..., "cpu_s_per_gib": ...}

Each batch is made anew by one copy of what is there already, and decodes nothing: what is left to do is to send.
``ring`` is shardlab's, the other forms are what the dataset of a stock DataLoader with one forked worker returns.
Processor seconds are of both processes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

import shardlab
from shardlab.dataset._arrays import ArrayDataset
from shardlab.library import Batches
from shardlab.measure.tree import tree_cpu_s

LEAST_S = 0.5
EPOCH_BYTES, MOST_BATCHES = 256 << 20, 2000
LIST_BYTES = 64 << 20  # of an epoch: a second and more


@dataclass(frozen=True)
class Form:
    """What is kept of an array of bytes, how a batch is made of it, and how a receiver reads all of it."""

    kept: Callable[[NDArray[np.uint8]], Any]
    copied: Callable[[Any], Any]
    read: Callable[[Any], Any]


def sum_of(raw: Any) -> int:
    """All bytes by eight, at which a sum runs at the speed of memory."""
    return int(np.asarray(raw).reshape(-1).view(np.uint64).sum())


FORMS = {
    "list": Form(lambda raw: raw.view(np.int64).tolist(), list, sum),  # of numbers, each for eight bytes
    "bytes": Form(np.ndarray.tobytes, lambda kept: bytes(memoryview(kept)), lambda got: sum_of(np.frombuffer(got))),
    "ndarray": Form(lambda raw: raw, np.copy, sum_of),
    "tensor": Form(torch.from_numpy, torch.clone, sum_of),
}


class Copies(Dataset[Any]):
    """``batches`` copies of one batch in one form."""

    def __init__(self, form: Form, raw: NDArray[np.uint8], batches: int) -> None:
        self.kept, self.copied, self.batches = form.kept(raw), form.copied, batches

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Any:
        return self.copied(self.kept)


def stream_of(name: str, nbytes: int, batches: int) -> Iterable[Any]:
    """What another process sends, once for each iteration."""
    if name == "ring":
        rows = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (batches, nbytes), np.uint8))
        return shardlab.loader(ArrayDataset(rows), 1, sampler="ring", shuffle=False, worker_start_method="fork")
    raw = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    return DataLoader(
        Copies(FORMS[name], raw, batches), batch_size=None, num_workers=1, persistent_workers=True,
        multiprocessing_context="fork", collate_fn=as_it_is,
    )  # fmt: skip


def as_it_is(batch: Any) -> Any:
    """Without it DataLoader would make tensors of arrays."""
    return batch


def main() -> None:
    """An epoch to warm up, then epochs for LEAST_S and more."""
    name, nbytes = sys.argv[1], int(sys.argv[2])
    batches = min(MOST_BATCHES, (LIST_BYTES if name == "list" else EPOCH_BYTES) // nbytes)
    stream, read = stream_of(name, nbytes, batches), FORMS[name].read if name in FORMS else sum_of
    epoch(stream, read)
    cpu_s, started, epochs = tree_cpu_s(os.getpid()), time.perf_counter(), 0
    while not epochs or time.perf_counter() - started < LEAST_S:
        epoch(stream, read)
        epochs += 1
    wall_s, cpu_s = time.perf_counter() - started, tree_cpu_s(os.getpid()) - cpu_s
    sent = epochs * batches * nbytes
    print(json.dumps({"bytes_per_s": sent / wall_s, "cpu_s_per_gib": cpu_s / sent * 2**30}), flush=True)
    if isinstance(stream, Batches):
        stream.close()


def epoch(stream: Iterable[Any], read: Callable[[Any], Any]) -> None:
    """All batches, each read and let go of."""
    for batch in stream:
        read(batch)
        del batch  # a view of a buffer of the ring


if __name__ == "__main__":
    main()

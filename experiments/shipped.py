"""The time to the first batch of a DataLoader whose workers have to be given the dataset.

    python experiments/shipped.py FORM START_METHOD WORKERS MIB         prints {"build_s": ..., "first_batch_s": ...}

As a user's script has it: a worker that is spawned imports this file, and so torch, anew. A sample is its length, so
that nothing but the dataset crosses to the workers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

STRING_BYTES = 64
BATCH = 256
MIB = 1 << 20


def strings(count: int) -> list[bytes]:
    """So many different byte strings of STRING_BYTES, as file names would be."""
    return [b"folder/%012d.jpeg" % number + bytes(STRING_BYTES - 24) for number in range(count)]


def rows(count: int) -> Any:
    """As many bytes in one array: uint8 of shape (count, STRING_BYTES)."""
    return np.random.default_rng(0).integers(0, 256, (count, STRING_BYTES), np.uint8)


def shared(count: int) -> Any:
    """The array in a memory file that workers map; they are sent where it is."""
    import shardlab  # only here: the other forms need not pay for it

    return shardlab.share(lambda: Lengths(torch.from_numpy(rows(count))))


class Lengths(Dataset[int]):
    """The length of each row of anything with rows."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> int:
        return len(self.data[index])


FORMS: dict[str, Callable[[int], Any]] = {
    "list": lambda count: Lengths(strings(count)),
    "numpy": lambda count: Lengths(rows(count)),
    "tensor": lambda count: Lengths(torch.from_numpy(rows(count))),
    "shared": shared,
}


def main() -> None:
    """Build, start the workers, wait for a batch."""
    form, method, workers, mib = sys.argv[1:]
    started = time.perf_counter()
    dataset = FORMS[form](int(mib) * MIB // STRING_BYTES)
    built = time.perf_counter()
    loader: DataLoader[Any] = DataLoader(
        dataset, BATCH, num_workers=int(workers), multiprocessing_context=method
    )
    batches = iter(loader)
    next(batches)
    came = time.perf_counter()
    print(json.dumps({"build_s": built - started, "first_batch_s": came - built}), flush=True)
    batches._shutdown_workers()  # type: ignore[attr-defined]  # the rest of the epoch is of no interest


if __name__ == "__main__":
    main()

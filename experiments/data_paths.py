"""How much faster are `keyed` and `ring` than the paths they replace, with one copy and one reader?

Hypothesis, at 4 ranks: `ring` at least 30x `accelerate` (dispatch) on samples of 784 bytes and 15x on 150 KB;
`keyed` with one shared copy at least 5x `distributed` with private copies on 784 bytes and 1.3x on 150 KB, and
its samplers in a stock DataLoader at least 2x and 1x; `ring` at least 4x and 1.2x; a pool
of four readers at least 5x `distributed` with a worker for each rank.

How to read the answer: each row is a pair of configurations run in turn, each time in fresh processes;
``ratio`` is the median of A's distinct samples/s over B's, pair by pair, ``low`` and ``high`` a 95 % bootstrap
interval of it, ``cpu_ratio`` that of B's processor seconds per sample over A's, which other work on the machine
disturbs less. Every rank reads every byte of every batch. ``copies`` and ``reads`` of both are from the same
runs: reads by rank, so `N 0 0 0` is one reader.

    python experiments/data_paths.py [--full] [--pairs N] [--only NAME]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pairs import LARGE, SMALL, Comparison, run

STOCK = f"{Path(__file__).parent / 'stock_loader.py'}"
ONE_EPOCH = {"epochs": 1}
THREE_EPOCHS = {"epochs": 3}


def against(name: str, size: dict[str, Any], a: dict[str, Any], b: dict[str, Any], target: float) -> Comparison:
    """Both on the same data."""
    return Comparison(name, size | a, size | b, target)


DISPATCH = {"sampler": "accelerate"}
RING = {"sampler": "ring"}
KEYED = {"sampler": "keyed"}
DISTRIBUTED = {"sampler": "distributed"}
TWO = {"sampler": "ring", "workers": 2}
POOL = {"sampler": "ring", "workers": 4}
WORKER_EACH = {"sampler": "distributed", "workers": 1}
BY_SAMPLE = {"sampler": f"{STOCK}:by_sample", "store": "shared"}
BY_BATCH = {"sampler": f"{STOCK}:by_batch", "store": "shared"}
FEW, MORE, LONG = {"max_steps": 300}, {"max_steps": 600}, THREE_EPOCHS

COMPARISONS = [
    against("ring / dispatch, 784 B", SMALL | FEW, RING, DISPATCH, 30),
    against("ring / dispatch, 150 KB", LARGE, RING, DISPATCH, 15),
    against("keyed+shared / distributed+private, 784 B", SMALL, KEYED, DISTRIBUTED, 5),
    against("keyed+shared / distributed+private, 150 KB", LARGE | LONG, KEYED, DISTRIBUTED, 1.3),
    against("ring / distributed+private, 784 B", SMALL, RING, DISTRIBUTED, 4),
    against("ring / distributed+private, 150 KB", LARGE | LONG, RING, DISTRIBUTED, 1.2),
    against("ring, pool of 2 / distributed+private, 150 KB", LARGE | LONG, TWO, DISTRIBUTED, 1.2),
    against("KeyedSampler in a stock DataLoader / distributed, 784 B", SMALL, BY_SAMPLE, DISTRIBUTED, 2),
    against("KeyedBatchSampler in a stock DataLoader / distributed, 784 B", SMALL, BY_BATCH, DISTRIBUTED, 2),
    against("KeyedSampler in a stock DataLoader / distributed, 150 KB", LARGE | LONG, BY_SAMPLE, DISTRIBUTED, 1),
    against("KeyedBatchSampler in a stock DataLoader / distributed, 150 KB", LARGE | LONG, BY_BATCH, DISTRIBUTED, 1),
    against("ring, pool of 4 / distributed, a worker per rank, 784 B", SMALL | MORE, POOL, WORKER_EACH, 5),
    against("ring, pool of 4 / distributed, a worker per rank, 150 KB", LARGE, POOL, WORKER_EACH, 5),
]

if __name__ == "__main__":
    run(__doc__ or "", COMPARISONS, "data_paths.csv")

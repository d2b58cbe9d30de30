"""Is one reader ever slower than dispatch, when reading a sample costs processor time?

Hypothesis: at 0, 0.2 and 2 ms of processor time a sample, `ring` is never slower than `accelerate` (dispatch)
with as many reading processes in all: one each, and four each. `accelerate-shard`, where every rank reads, stands
beside both: with four reading processes it is their equal, without workers its four ranks read against the
ring's one reader, and on two cores that can be twice as fast.

How to read the answer: rows sorted by ``ratio``, the worst first; columns as in data_paths.py.

    python experiments/decode_cost.py [--full] [--pairs N] [--only NAME]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pairs import Comparison, run, said

DATA = Path(__file__).parent / "decoding.py"
STEPS = {"0us": 400, "200us": 60, "2ms": 12}  # half a second to a second each
ONE = {"a": {"workers": 1}, "accelerate": {"workers": 0}, "accelerate-shard": {"workers": 0}}
FOUR = {"a": {"workers": 4}, "accelerate": {"workers": 4}, "accelerate-shard": {"workers": 1}}
READERS: dict[str, dict[str, dict[str, Any]]] = {"1 reader": ONE, "4 readers": FOUR}


def comparison(cost: str, readers: str, other: str) -> Comparison:
    """`ring` against another path. With dispatch only rank 0 has workers."""
    data = {"dataset": f"{DATA}:spin_{cost}", "batch_size": 8, "max_steps": STEPS[cost]}
    flags = READERS[readers]
    return Comparison(
        f"ring / {other}, {cost}, {readers}",
        data | {"sampler": "ring"} | flags["a"],
        data | {"sampler": other} | flags[other],
        1.0,
    )


COMPARISONS = [
    comparison(cost, readers, other)
    for other in ("accelerate", "accelerate-shard")
    for readers in READERS
    for cost in STEPS
]

if __name__ == "__main__":
    rows = run(__doc__ or "", COMPARISONS, "decode_cost.csv")
    print("\nThe worst first:")
    print("\n".join(said(row) for row in sorted(rows, key=lambda row: row.ratio)))

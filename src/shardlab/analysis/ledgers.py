"""Which sample each rank was handed, step by step, from the ledgers that a run kept."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardlab.errors import RunFailed, UsageError

NOTHING = -1
"""Stands where a rank was handed no sample."""


def delivered(
    folder: str | Path, run_id: str, batch_size: int, epoch: int | None = None
) -> NDArray[np.int64]:
    """The indices delivered in an epoch, int64 (ranks, steps, batch), ``NOTHING`` where a rank got none.

    ``folder`` holds ``ledger/RUN_ID-RANK.npy`` (the last epoch of ``--keep-ledger``) or
    ``ledger/RUN_ID-RANK-EPOCH.npy`` (training); without ``epoch`` it is the last one. The files do not say where
    a step ends, so a step is ``batch_size`` samples: one that had fewer shifts those after it.

    Raises RunFailed where there is no such ledger, or a file holds something else; UsageError for a batch size
    below 1 or a run that is no plain name.
    """
    if batch_size < 1:
        raise UsageError("batch_size must be at least 1", batch_size)
    if not re.fullmatch(r"[\w.-]+", run_id):
        raise UsageError("run_id must be a name as in runs.csv", run_id)
    files = _files(Path(folder) / "ledger", run_id, epoch)
    if not files:
        raise RunFailed(f"{Path(folder) / 'ledger'} has no ledger of run {run_id}; --keep-ledger keeps it")
    return stacked({rank: _read(file) for rank, file in files.items()}, batch_size)


def stacked(indices: dict[int, NDArray[np.int64]], batch_size: int) -> NDArray[np.int64]:
    """What each rank was handed, int64 (samples of the rank), as one array (ranks, steps, batch)."""
    steps = max(-(-len(of_rank) // batch_size) for of_rank in indices.values())
    table = np.full((max(indices) + 1, steps * batch_size), NOTHING, dtype=np.int64)
    for rank, of_rank in indices.items():
        table[rank, : len(of_rank)] = of_rank
    return table.reshape(len(table), steps, batch_size)


def _files(folder: Path, run_id: str, epoch: int | None) -> dict[int, Path]:
    """The file of each rank, of one epoch."""
    named = re.compile(re.escape(run_id) + r"-(\d+)(?:-(\d+))?\.npy")
    found: dict[int | None, dict[int, Path]] = {}
    for file in sorted(folder.glob("*.npy")):
        match = named.fullmatch(file.name)
        if match:
            number = int(match[2]) if match[2] else None
            found.setdefault(number, {})[int(match[1])] = file
    last = None if None in found else max((number for number in found if number is not None), default=None)
    return found.get(last if epoch is None else epoch, {})


def _read(file: Path) -> NDArray[np.int64]:
    try:
        indices = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise RunFailed(f"{file} is no ledger: {error}") from error
    if not isinstance(indices, np.ndarray) or indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise RunFailed(f"{file} is no ledger: it must hold one row of whole numbers")
    return indices.astype(np.int64)

"""Results folders made by hand: every figure is given, and rows are written as a run writes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from shardlab.analysis.load import ENVIRONMENT
from shardlab.config import RunConfig
from shardlab.csvlog import append
from shardlab.records import SCHEMA_VERSION, Measured, MemoryRecord, NodeRecord, RankRecord, RunRecord

MIB = 1 << 20
MACHINE = {
    "hostname": "a", "cpu": "x", "cores": 2, "ram_bytes": 8 << 30, "kernel": "6", "torch": "2.14",
    "accelerate": "1.15", "argv": "/somewhere/shardlab/profile.py --nproc 2",
}  # fmt: skip
MEASURED = {
    "framework": "profile", "dataset_bytes": 64 * MIB, "samples": 100, "nnodes": 1, "world_size": 2, "delivered": 100,
    "distinct": 100, "duplicates": 0, "missing": 0, "steps_min": 5, "steps_max": 5,
}  # fmt: skip


def run(run_id: str, flags: dict[str, Any] | None = None, **values: Any) -> RunRecord:
    """A run of ``distributed + private`` on two ranks; ``flags`` and values of columns change it."""
    config = RunConfig(**{"store": "private", "dataset": "synthetic:64MiB", **(flags or {})})
    environment: dict[str, Any] = {**dict.fromkeys(ENVIRONMENT), **MACHINE}
    environment |= {name: values.pop(name) for name in list(values) if name in ENVIRONMENT}
    return RunRecord(
        schema_version=SCHEMA_VERSION, run_id=run_id, started_at="2026-03-01T12:00:00+00:00", comparison=None,
        repeat=0, config=config, measured=Measured(**{**MEASURED, **values}), environment=environment,
    )  # fmt: skip


def copies(value: float, speed: float | None, within: float = 0.25) -> dict[str, Any]:
    """Columns of a run with so many copies, bounds on both sides, and samples/s."""
    duplicate = max(0, round((value - 1) * 64 * MIB))
    return {
        "copies": value, "copies_low": value - within, "copies_high": value + within, "duplicate_bytes": duplicate,
        "samples_per_s": speed,
    }  # fmt: skip


def folder(path: Path, *runs: RunRecord, ledgers: bool = False) -> Path:
    """Rows of the runs, of their node, of two ranks and their memory; with ``ledgers`` what each rank was given."""
    append(path, "runs.csv", runs)
    for each in runs:
        figures = each.measured
        append(path, "nodes.csv", [_node(each.run_id, figures)])
        append(path, "ranks.csv", [_rank(each.run_id, rank) for rank in range(2)])
        append(path, "memory.csv", [_memory(each.run_id, rank, t) for rank in range(2) for t in range(3)])
        if ledgers:
            (path / "ledger").mkdir(exist_ok=True)
            for rank in range(2):
                np.save(path / "ledger" / f"{each.run_id}-{rank}.npy", np.arange(rank, 100, 2))
    return path


def _node(run_id: str, figures: Measured) -> Any:
    known = {name: getattr(figures, name) for name in ("dataset_bytes", "copies", "copies_low", "copies_high")}
    shared = None if figures.copies is None else round(figures.copies * 64 * MIB)
    return _record(
        NodeRecord, run_id=run_id, node="n", local_world_size=2, unreadable=0, data_private_bytes=shared, **known
    )


def _rank(run_id: str, rank: int) -> Any:
    return _record(
        RankRecord, run_id=run_id, epoch=1, rank=rank, node="n", pid=10 + rank, delivered=50, steps=5, wait_s=0.25,
        compute_s=0.5, other_s=0.0,
    )  # fmt: skip


def _memory(run_id: str, rank: int, t_s: int) -> Any:
    return _record(
        MemoryRecord, run_id=run_id, t_s=float(t_s), node="n", pid=10 + rank, role="rank", rank=rank,
        rss_bytes=(100 + t_s) * MIB,
    )  # fmt: skip


def _record(kind: Any, **given: Any) -> Any:
    return kind(**{**dict.fromkeys(field.name for field in dataclasses.fields(kind)), **given})

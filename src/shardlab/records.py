"""The rows of the results: a dataclass each; the CSV headers are their fields.

Units are in the names. ``None`` is an empty cell: not known, with the reason in ``RunRecord.reason``.
The dictionary of all columns is ``dictionary.md``, beside this file.
"""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from shardlab.config import RunConfig

SCHEMA_VERSION = 2

MACHINE = ("hostname", "cpu", "cores", "ram_bytes", "kernel", "torch", "accelerate")
"""Columns of ``runs.csv`` that have to be the same for two figures to be compared."""


def new_run_id() -> str:
    """A name for the rows of a run that no other run has; names sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True)
class Memory:
    """What /proc says of a process, or of several summed, in bytes; ``None`` where it does not say.

    PSS is the proportional set size: a page that k processes map counts 1/k in each of them.
    """

    rss_bytes: int | None = None
    pss_bytes: int | None = None
    uss_bytes: int | None = None
    pss_anon_bytes: int | None = None
    pss_file_bytes: int | None = None
    pss_shmem_bytes: int | None = None

    def __add__(self, other: Memory) -> Memory:
        return Memory(
            **{
                name: _sum(getattr(self, name), getattr(other, name))
                for name in (f.name for f in dataclasses.fields(self))
            }
        )


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


@dataclass(frozen=True)
class RankRecord:
    """One row of ``ranks.csv``: a run x epoch x rank."""

    run_id: str
    epoch: int
    rank: int
    node: str
    pid: int
    reads: int | None
    delivered: int
    distinct: int | None
    duplicates: int | None
    steps: int
    len_reported: int | None
    wait_s: float
    compute_s: float | None
    comm_s: float | None
    other_s: float
    wait_p50_s: float | None
    wait_p99_s: float | None
    first_batch_s: float | None
    samples_per_s: float | None
    cpu_s: float | None
    rss_bytes: int | None
    pss_bytes: int | None
    uss_bytes: int | None
    pss_anon_bytes: int | None
    pss_file_bytes: int | None
    pss_shmem_bytes: int | None
    order_hash: str | None


@dataclass(frozen=True)
class NodeRecord:
    """One row of ``nodes.csv``: a run x node."""

    run_id: str
    node: str
    local_world_size: int
    processes: int | None
    unreadable: int | None
    dataset_bytes: int | None
    copies: float | None
    copies_low: float | None
    copies_high: float | None
    used_bytes: int | None
    control_bytes: int | None
    duplicate_bytes: int | None
    data_private_bytes: int | None
    data_shared_bytes: int | None
    data_file_bytes: int | None
    retained_bytes: int | None
    inflight_bytes: int | None
    pss_peak_bytes: int | None
    file_resident_bytes: int | None
    page_cache_warm_ratio: float | None
    cgroup_version: int | None
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int | None
    shm_free_bytes: int | None
    monitor_cpu_s: float | None


@dataclass(frozen=True)
class MemoryRecord:
    """One row of ``memory.csv``: a process at a time. Between barriers only ``rss_bytes`` is known."""

    run_id: str
    t_s: float
    node: str
    pid: int
    role: str
    rank: int | None
    worker: int | None
    rss_bytes: int | None
    pss_bytes: int | None
    uss_bytes: int | None
    pss_anon_bytes: int | None
    pss_file_bytes: int | None
    pss_shmem_bytes: int | None
    spike_bytes: int | None = None


@dataclass(frozen=True)
class StepRecord:
    """One row of ``training.csv``: a step of training, its loss the mean over the ranks."""

    run_id: str
    epoch: int
    step: int
    loss: float
    learning_rate: float


@dataclass(frozen=True)
class Measured:
    """The measured columns of ``runs.csv``, all over the whole run unless said."""

    framework: str | None = None
    loader_class: str | None = None
    dataset_bytes: int | None = None
    samples: int | None = None
    nnodes: int | None = None
    world_size: int | None = None
    copies: float | None = None
    copies_low: float | None = None
    copies_high: float | None = None
    census_copies: float | None = None
    duplicate_bytes: int | None = None
    retained_bytes: int | None = None
    inflight_bytes: int | None = None
    pss_peak_bytes: int | None = None
    samples_per_s: float | None = None
    bytes_per_s: float | None = None
    stall_ratio: float | None = None
    first_batch_s: float | None = None
    cpu_s_per_1k_samples: float | None = None
    delivered: int | None = None
    distinct: int | None = None
    duplicates: int | None = None
    missing: int | None = None
    steps_min: int | None = None
    steps_max: int | None = None
    order_hash: str | None = None
    monitor_cpu_s: float | None = None
    census_cpu_s: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    status: str = "ok"
    reason: str = ""


@dataclass(frozen=True)
class RunRecord:
    """One row of ``runs.csv``: config, figures and environment, flattened by :func:`row`."""

    schema_version: int
    run_id: str
    started_at: str
    comparison: str | None
    repeat: int
    config: RunConfig
    measured: Measured = field(default_factory=Measured)
    environment: dict[str, str | int | float | None] = field(default_factory=dict)


def row(record: Any) -> dict[str, Any]:
    """A record as one flat row: nested records and mappings are laid out in place."""
    flat: dict[str, Any] = {}
    for item in dataclasses.fields(record):
        value = getattr(record, item.name)
        if dataclasses.is_dataclass(value):
            flat.update(row(value))
        elif isinstance(value, dict):
            flat.update(value)
        else:
            flat[item.name] = value
    return flat

"""The monitor of one node, from the side of whoever starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shardlab import dataset
from shardlab.engine.epochs import HOLD_TIMEOUT_S
from shardlab.engine.job import Job
from shardlab.measure.monitor import MonitorConfig, MonitorEnd, read_hold, start, stop
from shardlab.measure.reading import HoldReading
from shardlab.world import host_name


@dataclass
class Watched:
    """What the monitor read; filled in when it has ended."""

    hold: HoldReading | None = None
    end: MonitorEnd | None = None


@contextmanager
def monitored(job: Job, local_ranks: range, launcher_pid: int | None, watched: Watched) -> Iterator[None]:
    """A monitor for the ranks of this node; ``watched`` is filled in when it is left, however that is."""
    process = start(job.folder, MonitorConfig(
        run_id=job.run_id, node=host_name(), launcher_pid=launcher_pid, parent_pid=os.getpid(),
        local_ranks=tuple(local_ranks), results=job.results, dataset_files=own_files(job),
        hold_timeout_s=HOLD_TIMEOUT_S, clean_run_dir=True,
        pss_timeline=job.pss_timeline, census=job.census,
    ))  # fmt: skip
    try:
        yield
    finally:
        watched.end = stop(process, job.folder)
        watched.hold = last_hold(job.folder)


def own_files(job: Job) -> tuple[str, ...]:
    """Files that the user's dataset maps by itself; those of a store are the store's to name."""
    return job.facts.files if job.control is None and dataset.kind_of(job.spec) == "factory" else ()


def last_hold(run_dir: Path) -> HoldReading | None:
    """The reading of the last timed epoch: objects that are copied as they are touched have been by then."""
    epochs = sorted(int(file.stem.partition("-")[2]) for file in run_dir.glob("hold-*.json"))
    return read_hold(run_dir, epochs[-1]) if epochs else None

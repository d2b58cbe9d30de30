"""What one rank says of one epoch: its row, and what the launcher needs beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from shardlab.engine.loop import Epoch
from shardlab.index.ledger import RankLedger
from shardlab.index.order import global_positions, hex16, order_hash
from shardlab.records import Memory, RankRecord
from shardlab.world import World, host_name


@dataclass(frozen=True)
class Learned:
    """What training an epoch came to. ``losses`` are this rank's, from step ``first_step`` on, finite or not.

    ``accuracy``, ``eval_loss`` and ``evaluated`` are over the whole evaluation dataset, the same on every rank;
    None where there is none. ``accounted_ratio``: see :class:`shardlab.measure.timer.StepTimer`.
    """

    first_step: int
    learning_rate: float
    losses: tuple[float, ...]
    accounted_ratio: float
    accuracy: float | None = None
    eval_loss: float | None = None
    evaluated: int | None = None


@dataclass(frozen=True)
class EpochReport:
    """``row`` is the rank's row of ``ranks.csv``; the rest is summed up in ``runs.csv``, or shown.

    ``notes`` are the loader's own lines on the epoch, ``held_bytes`` the bytes of the files that it opened; of
    loaders that say so. ``paced_s``: see :class:`shardlab.engine.loop.Epoch`.
    """

    row: RankRecord
    wall_s: float
    batch_bytes: int
    largest_batch_bytes: int
    reads_by_worker: tuple[int, ...]
    loader_class: str
    stored_bytes: int | None
    notes: tuple[str, ...] = ()
    held_bytes: int | None = None
    learned: Learned | None = None
    paced_s: float | None = None

    def save(self, run_dir: Path) -> None:
        """Write it where the launcher looks for it, whole or not at all.

        JSON has no NaN and no infinity, and a loss may be either: msgpack has both.
        """
        path = run_dir / f"report-{self.row.epoch}-{self.row.rank}.msgpack"
        partial = path.with_suffix(".partial")
        partial.write_bytes(msgspec.msgpack.encode(self))
        partial.rename(path)


def load_reports(run_dir: Path) -> tuple[EpochReport, ...]:
    """All reports in a run's folder, by epoch and rank."""
    found = [
        msgspec.msgpack.decode(file.read_bytes(), type=EpochReport)
        for file in run_dir.glob("report-*.msgpack")
    ]
    return tuple(sorted(found, key=lambda report: (report.row.epoch, report.row.rank)))


def rank_row(
    run_id: str,
    number: int,
    world: World,
    pid: int,
    epoch: Epoch,
    ledger: RankLedger,
    reads: int | None,
    batch_size: int,
) -> RankRecord:
    """The figures of one rank and epoch; ``comm_s`` is empty where ranks exchange nothing."""
    delivered = int(ledger.indices.size)
    distinct = int(np.unique(ledger.indices).size)
    positions = global_positions(ledger.ends, world.rank, world.world_size, batch_size)
    memory = (epoch.hold.memory if epoch.hold else None) or Memory()
    timer = epoch.timer
    return RankRecord(
        run_id=run_id,
        epoch=number,
        rank=world.rank,
        node=host_name(),
        pid=pid,
        reads=reads,
        delivered=delivered,
        distinct=distinct,
        duplicates=delivered - distinct,
        steps=epoch.steps,
        len_reported=epoch.len_reported,
        wait_s=timer.wait_s,
        compute_s=timer.compute_s,
        comm_s=timer.comm_s,
        other_s=timer.other_s,
        wait_p50_s=timer.wait_percentile_s(50),
        wait_p99_s=timer.wait_percentile_s(99),
        first_batch_s=timer.first_batch_s,
        samples_per_s=delivered / epoch.paced_s if epoch.paced_s > 0 else None,
        cpu_s=epoch.cpu_s,
        rss_bytes=memory.rss_bytes,
        pss_bytes=memory.pss_bytes,
        uss_bytes=memory.uss_bytes,
        pss_anon_bytes=memory.pss_anon_bytes,
        pss_file_bytes=memory.pss_file_bytes,
        pss_shmem_bytes=memory.pss_shmem_bytes,
        order_hash=hex16(order_hash(positions, ledger.indices)),
    )

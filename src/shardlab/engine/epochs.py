"""The epochs of one rank, one after the other: a ledger for each, reads counted, a report for the launcher."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardlab import csvlog, plugins
from shardlab.dataset._content import words_of_batch
from shardlab.engine.in_hand import batches_in_hand
from shardlab.engine.job import Job
from shardlab.engine.loop import Feed, LoopTools
from shardlab.engine.report import EpochReport, Learned, rank_row
from shardlab.index import ledger as ledgers
from shardlab.index.ledger import Ledger
from shardlab.measure.hold import Holder
from shardlab.measure.progress import ProgressFile
from shardlab.store import Store
from shardlab.world import World

HOLD_TIMEOUT_S = 60.0  # how long the monitor waits for the last rank to be held


@dataclass
class Epochs:
    """What the epochs of a rank have in common. Between ``begin`` and ``end`` lies one of them."""

    job: Job
    world: World
    store: Store
    loader: Any
    device: torch.device
    holder: Holder = field(init=False)
    progress: ProgressFile = field(init=False)
    steps: int | None = None  # of the epoch before, for loaders without a length
    _log: Ledger = field(init=False)
    _reads_before: int = 0

    def __post_init__(self) -> None:
        self.holder = Holder.connect(self.job.folder, self.world.rank, HOLD_TIMEOUT_S + 30)
        self.progress = ProgressFile(self.job.folder, self.world.local_world_size)

    def begin(self, number: int, *, hold: bool, done_before: int = 0) -> Feed:
        """The batches of epoch ``number``; ranks begin it together. ``hold``: its memory is to be read.

        ``done_before``: steps of it that an earlier run has done, which ``--max-steps`` counts too.
        """
        most = self.job.config.max_steps
        words = None if self.job.control else words_of_batch(self.job.spec)
        self._log = Ledger.create(
            self.job.folder / f"ledger-{number}-{self.world.rank}", self._capacity(), words=words is not None
        )
        tools = LoopTools(
            device=self.device,
            max_steps=None if most is None else max(0, most - done_before),
            words=words,
            progress=self.progress.writer(self.world.local_rank, number),
            in_hand=self._in_hand if self.job.census else None,
        )
        self.loader.set_epoch(number)  # before reads are counted: workers of an epoch that was cut still fetch
        self._reads_before = self.store.counter.total()
        dist.barrier()
        return Feed(self.loader, number, self._log, tools, self.holder if hold else None, self.steps)

    def _in_hand(self, largest_bytes: int) -> list[tuple[int, int]]:
        most = 2 * self.world.world_size * largest_bytes  # who dispatches has the batches of all ranks in one
        return batches_in_hand(self.store.raw, most)

    def end(self, feed: Feed, *, timed: bool, learned: Learned | None = None) -> None:
        """The epoch is through on this rank: wait for the others and report."""
        epoch = feed.end()
        self._log.close()
        self.steps = epoch.steps
        dist.barrier()  # a reader for all ranks is through with the epoch, and its reads are counted
        if timed:
            self._report(feed.epoch, epoch, learned)

    def _capacity(self) -> int:
        samples, size = self.job.facts.samples or 0, self.job.config.batch_size
        return (-(-samples // (self.world.world_size * size)) + 1) * size

    def _report(self, number: int, epoch: Any, learned: Learned | None) -> None:
        job, loader, counter = self.job, self.loader, self.store.counter
        delivered = ledgers.read(job.folder / f"ledger-{number}-{self.world.rank}")
        reads: int | None = counter.total() - self._reads_before
        if reads == 0 and delivered.indices.size and job.config.sampler not in plugins.find("datapath"):
            reads = None  # a user's path that reads by itself: nobody counted
        row = rank_row(
            job.run_id, number, self.world, os.getpid(), epoch, delivered, reads, job.config.batch_size
        )
        if not job.knows_indices:
            row = replace(row, distinct=None, duplicates=None, order_hash=None)
        cls = getattr(loader, "loader_class", type(loader))
        EpochReport(
            row,
            epoch.timer.wall_s,
            epoch.batch_bytes,
            epoch.largest_batch_bytes,
            tuple(counter.by_worker()),
            f"{cls.__module__}.{cls.__qualname__}",
            getattr(getattr(self.store.raw, "note", None), "bytes", None),
            tuple(loader.describe()) if hasattr(loader, "describe") else (),
            getattr(loader, "held_bytes", None),
            learned,
            epoch.paced_s,
        ).save(job.folder)
        if job.results is not None:
            csvlog.append(Path(job.results), "ranks.csv", [row])

"""How much memory does a list of records take on a node, by where it lies and how workers start?

Hypothesis: 4 ranks of 2 workers hold a list 12 times where workers are spawned or come from a forkserver, at once,
and 4 times where they are forked, growing as records are read and their reference counts written. Encoded in one
buffer per rank it is smaller, stays as it was with forked workers, and is still copied to each other worker.
Encoded in one shared buffer there is one copy, whatever starts the workers.

How to read the answer: each row is one run, the same processes in each, ``DistributedSampler`` over ``samples``
records like those of an annotation file. ``before``: each worker has handed over its first batch; ``after``: all
but the last step of one epoch, in which a worker reads an eighth of the records.

- ``pss`` and ``uss`` are sums over ranks and workers, interpreters and libraries included;
  ``pss_after_ratio`` is that over one copy of the list (``list_bytes``).
- ``copies`` is without them, of what the store holds (``stored_bytes`` is one): memory of all processes less
  that of a control run of the same processes over CONTROL records, over ``stored_bytes``. ``lists`` is the same
  over ``list_bytes``. ``low`` and ``high`` allow for how far a run differs from itself.
- ``study_pss_before_ratio`` and ``study_pss_after_ratio`` are published figures, see ``records_rows.py``, of the case
  that is nearest: other records, another machine, one rank of 4 workers or two (``study_case``). They were not
  measured here. The records were larger there, so interpreters weigh less in them.

    python experiments/records_table.py [--records N] [--only TEXT]
"""

from __future__ import annotations

import argparse
import os
from dataclasses import astuple, dataclass
from functools import cache, reduce
from operator import add
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from held_twice import BEGINNING
from publishing import publish
from records_rows import STUDY, Row, Study
from shardlab.config import RunConfig, StartMethod
from shardlab.dataset import DatasetFacts, DatasetSpec
from shardlab.launch import probe, rundir, session
from shardlab.launch.copies import NOISE_BYTES_PER_PROCESS, Copies
from shardlab.launch.spec import spec_of
from shardlab.launch.watch import Watched
from shardlab.measure.monitor import read_hold
from shardlab.measure.reading import HoldReading
from shardlab.plan import resolve

HERE = Path(__file__).parent
RANKS, WORKERS = 4, 2
RECORDS = 300_000  # a list of a few hundred MiB, of which a node has to hold twelve
CONTROL = 2048  # records of a control run: eight steps for each rank
TIMEOUT_S = 300.0
MIB = 1 << 20
METHODS: tuple[StartMethod, ...] = ("fork", "forkserver", "spawn")
RESIDENCIES = ("list", "serialised", "shared")


@dataclass(frozen=True)
class Case:
    """A residency of so many records, under a start method of workers."""

    residency: str
    method: StartMethod
    samples: int

    @property
    def config(self) -> RunConfig:
        """The run, as flags of ``shardlab.profile`` would have it."""
        return resolve(RunConfig(
            sampler=f"{HERE / 'held_twice.py'}:open", store="shared" if self.residency == "shared" else "private",
            dataset=dataset_of(self.samples, self.residency == "serialised"),
            nproc=RANKS, workers=WORKERS, worker_start_method=self.method, batch_size=64, warmup=0,
        )).config  # fmt: skip


@dataclass(frozen=True)
class Readings:
    """What was read at the beginning of the epoch and before its last step."""

    before: HoldReading
    after: HoldReading


def main() -> None:
    """Run all, print each as it ends, write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=RECORDS, help="this many records")
    parser.add_argument("--only", default="", help="cases so named ('shared spawn'); not published")
    options = parser.parse_args()
    rows = []
    for method in METHODS:
        for residency in RESIDENCIES:
            if options.only in f"{residency} {method}":
                rows.append(row_of(Case(residency, method, options.records)))
                print(line(rows[-1]), flush=True)
                if not options.only:
                    publish("records_table.csv", rows)


def row_of(case: Case) -> Row:
    """Run a case, and its control where it is the first of its start method."""
    held, idle = run(case), run(Case("list", case.method, CONTROL))
    one = bytes_of(case.samples, encoded=False)
    stored = bytes_of(case.samples, encoded=case.residency != "list")
    pss_before, uss_before = of_ranks_and_workers(held.before)
    pss_after, uss_after = of_ranks_and_workers(held.after)
    return Row(
        case.residency, case.method, RANKS, WORKERS, case.samples, one, stored,
        pss_before, pss_after, pss_before / one, pss_after / one, uss_before, uss_after,
        grown(held.before, idle.before) / one, grown(held.after, idle.after) / one,
        *copies(held.before, idle.before, stored), *copies(held.after, idle.after, stored),
        *astuple(STUDY.get((case.residency, case.method), Study())),
        "; ".join(sorted({*held.before.reasons.values(), *held.after.reasons.values()})),
    )  # fmt: skip


def grown(held: HoldReading, idle: HoldReading) -> int:
    """Used memory of a run beyond that of its control, whose few records are no part worth mentioning."""
    assert held.used_bytes is not None and idle.used_bytes is not None
    return held.used_bytes - idle.used_bytes


def copies(held: HoldReading, idle: HoldReading, stored: int) -> tuple[float | None, ...]:
    """Value, low and high; all empty where one copy is not clear of what a run differs from itself."""
    noise = NOISE_BYTES_PER_PROCESS * held.processes
    found = Copies.of(grown(held, idle), 0, stored, 0, noise)
    return astuple(found) if found else (None, None, None)


def of_ranks_and_workers(held: HoldReading) -> tuple[int, int]:
    """PSS and USS, summed over ranks and workers."""
    total = reduce(add, held.by_rank.values())
    assert total.pss_bytes is not None and total.uss_bytes is not None
    return total.pss_bytes, total.uss_bytes


@cache
def run(case: Case) -> Readings:
    """Both readings of a run in fresh processes."""
    config = case.config
    facts = facts_of(config.dataset)
    with rundir.run_folder() as folder:
        job = session.new_job(config, spec_of(config), facts, folder, None, TIMEOUT_S)
        watched = Watched()
        session.run_ranks(job, session.SILENT, watched)
        before = read_hold(folder, BEGINNING)
    assert before is not None and watched.hold is not None, "memory was not read"
    return Readings(before, watched.hold)


def dataset_of(samples: int, encoded: bool) -> str:
    """What ``--dataset`` is given."""
    return f"{HERE / 'serialised.py'}:records_{samples}" if encoded else f"records:{samples}"


@cache
def facts_of(dataset: str) -> DatasetFacts:
    """Found out in a process that is thrown away."""
    with rundir.run_folder() as folder:
        return probe.facts_of(DatasetSpec(dataset), folder, TIMEOUT_S)


def bytes_of(samples: int, encoded: bool) -> int:
    """One copy."""
    size = facts_of(dataset_of(samples, encoded)).dataset_bytes
    assert size is not None, "records lie in memory"
    return size


def line(row: Row) -> str:
    """A row for the screen."""
    held = "copies of what is held not clear of the noise"
    if row.copies_before is not None and row.copies_after is not None:
        spread = f"[{row.copies_after_low:.2f}, {row.copies_after_high:.2f}]"
        held = f"copies of what is held {row.copies_before:.2f} -> {row.copies_after:.2f} {spread}"
    study = "study: none"
    if row.study_case:
        study = f"study {row.study_pss_before_ratio:.2f} -> {row.study_pss_after_ratio:.2f}, {row.study_case}"
    return (
        f"{row.residency:10} {row.worker_start_method:10}  "
        f"PSS {row.pss_before_bytes / MIB:7,.0f} -> {row.pss_after_bytes / MIB:7,.0f} MiB, "
        f"over one list {row.pss_before_ratio:5.2f} -> {row.pss_after_ratio:5.2f} ({study})  "
        f"lists {row.lists_before:.2f} -> {row.lists_after:.2f}  {held}  {row.remarks}"
    )


if __name__ == "__main__":
    main()

"""From what a run left in its folder to its rows: pure sums, no process started, nothing printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab import plugins
from shardlab.dataset._content import expected_words
from shardlab.engine.job import Job
from shardlab.engine.report import EpochReport
from shardlab.index import ledger as ledgers
from shardlab.index.audit import Audit, audit
from shardlab.launch.copies import NodeOutcome, census_copies, node_record, stored_bytes
from shardlab.launch.learned import last_learned, training_loss
from shardlab.records import SCHEMA_VERSION, Measured, NodeRecord, RankRecord, RunRecord
from shardlab.trainconfig import TrainConfig


@dataclass(frozen=True)
class Outcome:
    """All of one run: the rows, and what the verdict is made from."""

    run: RunRecord
    nodes: tuple[NodeRecord, ...]
    reports: tuple[EpochReport, ...]
    audits: tuple[Audit, ...]
    iterable: bool = False
    train: TrainConfig | None = None

    @property
    def findings(self) -> tuple[Any, ...]:
        """Everything that the audits of all timed epochs found."""
        return tuple(finding for audit in self.audits for finding in audit.findings)


def audit_epochs(job: Job, reports: tuple[EpochReport, ...], world_size: int) -> tuple[Audit, ...]:
    """An audit of each timed epoch whose ranks all reported."""
    path = plugins.find("datapath").get(job.config.sampler)
    audits = []
    for epoch in sorted({report.row.epoch for report in reports}):
        of_epoch = [report for report in reports if report.row.epoch == epoch]
        rows = [report.row for report in of_epoch]
        resumed = any(report.learned is not None and report.learned.first_step for report in of_epoch)
        if len(rows) == world_size:
            kept = [ledgers.read(ledger_file(job.folder, epoch, rank)) for rank in range(world_size)]
            found = audit(
                kept, epoch=epoch, samples=job.facts.samples, world_size=world_size,
                batch_size=job.config.batch_size, tail=job.config.tail,
                truncated=resumed or ended_early(job.config.max_steps, rows),
                shuffle=resumed or job.config.shuffle,  # the order of what is left does not begin at 0
                layout=path.fact("LAYOUT") if path else None, pad_allowed=None,
                len_reported=[row.len_reported for row in rows], expected_words=expected_words(job.spec),
            )  # fmt: skip
            audits.append(found if job.knows_indices else _without_indices(found))
    return tuple(audits)


def ended_early(max_steps: int | None, rows: Sequence[RankRecord]) -> bool:
    """Whether ``--max-steps`` cut the epoch: a limit that nobody reached cut nothing."""
    if max_steps is None or all(row.steps < max_steps for row in rows):
        return False
    return any(row.len_reported is None or row.len_reported > max_steps for row in rows)


def _without_indices(found: Audit) -> Audit:
    """What can be said without knowing which sample was which: lengths and steps."""
    sure = tuple(finding for finding in found.findings if finding.name in ("length", "unequal-steps"))
    return Audit(found.delivered, None, None, None, None, sure)


def ledger_file(run_dir: Path, epoch: int, rank: int) -> Path:
    """Where a rank keeps the indices it was given."""
    return run_dir / f"ledger-{epoch}-{rank}"


def outcome_of(
    job: Job,
    started_at: str,
    nodes: list[NodeOutcome],
    reports: tuple[EpochReport, ...],
    environment: dict[str, Any],
    failure: str = "",
    status: str = "failed",
) -> Outcome:
    """All rows of a run that ended, well or not. One that failed keeps what its ranks had reported."""
    world_size = sum(node.local_world_size for node in nodes)
    audits = audit_epochs(job, reports, world_size) if not failure else ()
    reasons: dict[str, str] = {}
    records = []
    for node in nodes:
        record, why = node_record(job, node, reports)
        records.append(record)
        where = "" if len(nodes) == 1 else f" ({node.node})"
        reasons |= {name + where: text for name, text in why.items()}
    measured = _measured(job, tuple(records), reports, audits, world_size)
    if any(audit.findings for audit in audits):
        measured = dataclasses.replace(measured, status="audit")
        found = [finding.sentence.rstrip(".") for audit in audits for finding in audit.findings]
        reasons = {"audit": found[0].replace(";", ",")} | reasons
    if failure:
        measured = dataclasses.replace(measured, status=status)
        reasons = {"run": failure}
    census, census_cpu_s, why_not = _by_content(job, nodes, reports)
    measured = dataclasses.replace(measured, census_copies=census, census_cpu_s=census_cpu_s)
    if why_not:
        reasons |= {"census_copies": why_not} | ({} if census_cpu_s else {"census_cpu_s": why_not})
    if measured.distinct is None and measured.delivered is not None:
        unknown = "which sample is which is not known where several processes read parts of a stream"
        reasons |= dict.fromkeys(("distinct", "samples_per_s"), unknown)
    if measured.stall_ratio is None and "run" not in reasons:
        reasons["stall_ratio"] = "nothing computes (--compute none)"
    if job.train is not None and measured.accuracy is None and "run" not in reasons:
        reasons["accuracy"] = "there is no evaluation dataset (--eval-dataset none)"
    text = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    measured = dataclasses.replace(measured, reason=text)
    run = RunRecord(
        SCHEMA_VERSION, job.run_id, started_at, job.comparison, job.repeat, job.config, measured, environment
    )
    return Outcome(run, tuple(records), reports, audits, job.facts.iterable, job.train)


def _by_content(
    job: Job, nodes: Sequence[NodeOutcome], reports: tuple[EpochReport, ...]
) -> tuple[float | None, float | None, str]:
    """The columns of the census, of the node with the most copies by it, and why there are none."""
    found = [census_copies(job, node, stored_bytes(job, reports)) for node in nodes]
    known = [copies for copies, _ in found if copies is not None]
    spent = [node.hold.census_cpu_s for node in nodes if node.hold and node.hold.census_cpu_s is not None]
    why = "" if known else next((why for _, why in found if why), "")
    return max(known, default=None), sum(spent) if spent else None, why


def _measured(
    job: Job,
    nodes: tuple[NodeRecord, ...],
    reports: tuple[EpochReport, ...],
    audits: tuple[Audit, ...],
    world_size: int,
) -> Measured:
    known = [node for node in nodes if node.copies is not None]
    fullest = max(known, key=lambda node: node.copies or 0.0) if known else nodes[0]
    last = audits[-1] if audits else None
    epochs = {report.row.epoch for report in reports} if audits else set()
    slowest = sum(max(r.paced_s or r.wall_s for r in reports if r.row.epoch == epoch) for epoch in epochs)
    known_distinct = [audit.distinct for audit in audits if audit.distinct is not None]
    distinct = sum(known_distinct) if len(known_distinct) == len(audits) else 0
    delivered = sum(audit.delivered for audit in audits)
    rows = [report.row for report in reports]
    computed = sum(row.compute_s or 0.0 for row in rows)
    exchanged = sum(row.comm_s or 0.0 for row in rows)
    waited = sum(row.wait_s for row in rows)
    learned = last_learned(reports)
    cpu = [row.cpu_s for row in rows]
    steps = [row.steps for row in rows]
    return Measured(
        framework=job.train.framework if job.train else "profile",
        loader_class=reports[0].loader_class if reports else None,
        dataset_bytes=fullest.dataset_bytes,
        samples=job.facts.samples,
        nnodes=len(nodes),
        world_size=world_size,
        copies=fullest.copies,
        copies_low=fullest.copies_low,
        copies_high=fullest.copies_high,
        duplicate_bytes=fullest.duplicate_bytes,
        retained_bytes=fullest.retained_bytes,
        inflight_bytes=fullest.inflight_bytes,
        pss_peak_bytes=fullest.pss_peak_bytes,
        samples_per_s=distinct / slowest if slowest and distinct else None,
        bytes_per_s=(
            sum(report.batch_bytes for report in reports) * distinct / delivered / slowest
            if slowest and delivered and distinct
            else None
        ),
        stall_ratio=waited / (waited + computed + exchanged) if computed else None,
        first_batch_s=max((row.first_batch_s for row in rows if row.first_batch_s is not None), default=None),
        cpu_s_per_1k_samples=(
            1000 * sum(c for c in cpu if c is not None) / distinct if distinct and None not in cpu else None
        ),
        delivered=last.delivered if last else None,
        distinct=last.distinct if last else None,
        duplicates=last.duplicates if last else None,
        missing=last.missing if last else None,
        steps_min=min(steps, default=None),
        steps_max=max(steps, default=None),
        order_hash=_run_hash(audits),
        monitor_cpu_s=fullest.monitor_cpu_s,
        accuracy=learned.accuracy if learned else None,
        loss=training_loss(reports),
    )


def _run_hash(audits: tuple[Audit, ...]) -> str | None:
    hashes = [audit.order_hash for audit in audits]
    return hashes[-1] if hashes else None

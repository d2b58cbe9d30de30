"""From what a run left in its folder to its rows: pure sums, no process started, nothing printed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab import plugins
from shardlab.dataset._content import expected_words
from shardlab.engine.job import Job
from shardlab.engine.report import EpochReport
from shardlab.index import ledger as ledgers
from shardlab.index.audit import Audit, audit
from shardlab.measure.kernel import Capabilities
from shardlab.measure.monitor import MonitorEnd
from shardlab.measure.reading import HoldReading
from shardlab.records import SCHEMA_VERSION, Measured, NodeRecord, RunRecord

NOISE_BYTES_PER_PROCESS = 2 << 20
"""By how much the same control run differs from itself, per process; measured by experiments/control_noise.py."""

NO_CENSUS = "the content of memory is not read by this command"


@dataclass(frozen=True)
class NodeOutcome:
    """What one node measured. ``why`` says why ``control`` is missing."""

    node: str
    local_world_size: int
    hold: HoldReading | None
    end: MonitorEnd | None
    control: HoldReading | None
    control_dataset_bytes: int | None
    why: str
    limits: Capabilities
    shm_free_bytes: int | None
    warm_ratio: float | None = None


@dataclass(frozen=True)
class Outcome:
    """All of one run: the rows, and what the verdict is made from."""

    run: RunRecord
    nodes: tuple[NodeRecord, ...]
    reports: tuple[EpochReport, ...]
    audits: tuple[Audit, ...]

    @property
    def findings(self) -> tuple[Any, ...]:
        """Everything that the audits of all timed epochs found."""
        return tuple(finding for audit in self.audits for finding in audit.findings)


@dataclass(frozen=True)
class Copies:
    """How many copies of the dataset a node holds, with the interval that the control's noise leaves."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, used: int, control_used: int, dataset_bytes: int, control_bytes: int, noise: int) -> Copies | None:
        """(used - control) / (dataset - its stand-in); None where that is not clear of the noise.

        >>> Copies.of(used=1400, control_used=404, dataset_bytes=250, control_bytes=1, noise=10)
        Copies(value=4.0, low=3.959..., high=4.040...)
        """
        more = dataset_bytes - control_bytes
        if more <= noise:
            return None
        value = (used - control_used) / more
        return cls(value, max(0.0, value - noise / more), value + noise / more)


def stored_bytes(job: Job, reports: tuple[EpochReport, ...]) -> int | None:
    """Bytes of one copy, as the store holds it."""
    stored = [report.stored_bytes for report in reports if report.stored_bytes is not None]
    return stored[0] if stored else job.facts.dataset_bytes


def node_record(job: Job, outcome: NodeOutcome, reports: tuple[EpochReport, ...]) -> tuple[NodeRecord, dict[str, str]]:
    """The node's row, and the reason for each of its empty cells."""
    hold, reasons = outcome.hold, {}
    size = stored_bytes(job, reports)
    copies, reason = _copies(outcome, size)
    if copies is None:
        reasons["copies"] = reason
    inflight = None
    if reports:
        inflight = outcome.local_world_size * job.config.workers * job.config.prefetch_factor * max(
            report.largest_batch_bytes for report in reports
        ) if job.config.workers else 0
    record = NodeRecord(
        run_id=job.run_id, node=outcome.node, local_world_size=outcome.local_world_size,
        processes=hold.processes if hold else None, unreadable=hold.unreadable if hold else None,
        dataset_bytes=size,
        copies=copies.value if copies else None,
        copies_low=copies.low if copies else None, copies_high=copies.high if copies else None,
        used_bytes=hold.used_bytes if hold else None,
        control_bytes=outcome.control.used_bytes if outcome.control else None,
        duplicate_bytes=max(0, round((copies.value - 1) * size)) if copies and size else None,
        retained_bytes=hold.retained_bytes if hold else None,
        inflight_bytes=inflight,
        pss_peak_bytes=outcome.end.pss_peak_bytes if outcome.end else None,
        file_resident_bytes=hold.file_resident_bytes if hold else None,
        page_cache_warm_ratio=outcome.warm_ratio,
        cgroup_version=outcome.limits.cgroup_version,
        cgroup_limit_bytes=outcome.limits.cgroup_limit_bytes,
        cgroup_used_bytes=outcome.limits.cgroup_used_bytes,
        shm_free_bytes=outcome.shm_free_bytes,
        monitor_cpu_s=outcome.end.monitor_cpu_s if outcome.end else None,
    )
    return record, reasons


def _copies(outcome: NodeOutcome, size: int | None) -> tuple[Copies | None, str]:
    hold, control = outcome.hold, outcome.control
    if hold is None or hold.used_bytes is None:
        why = "; ".join(hold.reasons.values()) if hold else "the ranks were never held to read their memory"
        return None, why
    if size is None:
        return None, "the dataset's size in memory is not known"
    if control is None or control.used_bytes is None or outcome.control_dataset_bytes is None:
        return None, outcome.why or "the control run gave no reading"
    noise = NOISE_BYTES_PER_PROCESS * hold.processes
    copies = Copies.of(hold.used_bytes, control.used_bytes, size, outcome.control_dataset_bytes, noise)
    if copies is None:
        small = (
            f"the dataset holds {size / 2**20:.1f} MiB in memory, its stand-in "
            f"{outcome.control_dataset_bytes / 2**20:.1f} MiB: the difference is not clear of the "
            f"{noise / 2**20:.0f} MiB by which a run differs from itself"
        )
        return None, small
    return copies, ""


def audit_epochs(job: Job, reports: tuple[EpochReport, ...], world_size: int) -> tuple[Audit, ...]:
    """An audit of each timed epoch whose ranks all reported."""
    path = plugins.find("datapath").get(job.config.sampler)
    audits = []
    for epoch in sorted({report.row.epoch for report in reports}):
        rows = [report.row for report in reports if report.row.epoch == epoch]
        if len(rows) == world_size:
            kept = [ledgers.read(ledger_file(job.folder, epoch, rank)) for rank in range(world_size)]
            audits.append(audit(
                kept, epoch=epoch, samples=job.facts.samples, world_size=world_size,
                batch_size=job.config.batch_size, tail=job.config.tail,
                truncated=job.config.max_steps is not None, shuffle=job.config.shuffle,
                layout=path.fact("LAYOUT") if path else None, pad_allowed=None,
                len_reported=[row.len_reported for row in rows], expected_words=expected_words(job.spec),
            ))  # fmt: skip
    return tuple(audits)


def ledger_file(run_dir: Path, epoch: int, rank: int) -> Path:
    """Where a rank keeps the indices it was given."""
    return run_dir / f"ledger-{epoch}-{rank}"


def outcome_of(
    job: Job, started_at: str, nodes: list[NodeOutcome], reports: tuple[EpochReport, ...], environment: dict[str, Any],
    failure: str = "",
) -> Outcome:
    """All rows of a run that ended, well or not. A failed run keeps what its ranks had reported."""
    world_size = sum(node.local_world_size for node in nodes)
    audits = audit_epochs(job, reports, world_size) if not failure else ()
    reasons: dict[str, str] = {}
    records = []
    for node in nodes:
        record, why = node_record(job, node, reports)
        records.append(record)
        reasons |= why
    measured = _measured(job, tuple(records), reports, audits, world_size)
    if any(audit.findings for audit in audits):
        measured = dataclasses.replace(measured, status="audit")
    if failure:
        measured = dataclasses.replace(measured, status="failed")
        reasons = {"run": failure}
    reasons |= {"census_copies": NO_CENSUS, "census_cpu_s": NO_CENSUS}
    if measured.stall_ratio is None and "run" not in reasons:
        reasons["stall_ratio"] = "nothing computes (--compute none)"
    text = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    measured = dataclasses.replace(measured, reason=text)
    run = RunRecord(SCHEMA_VERSION, job.run_id, started_at, job.config, measured, environment)
    return Outcome(run, tuple(records), reports, audits)


def _measured(
    job: Job, nodes: tuple[NodeRecord, ...], reports: tuple[EpochReport, ...], audits: tuple[Audit, ...], world_size: int
) -> Measured:
    known = [node for node in nodes if node.copies is not None]
    fullest = max(known, key=lambda node: node.copies or 0.0) if known else nodes[0]
    last = audits[-1] if audits else None
    epochs = {report.row.epoch for report in reports} if audits else set()
    slowest = sum(max(r.wall_s for r in reports if r.row.epoch == epoch) for epoch in epochs)
    distinct = sum(audit.distinct or 0 for audit in audits)
    delivered = sum(audit.delivered for audit in audits)
    rows = [report.row for report in reports]
    computed = sum(row.compute_s or 0.0 for row in rows)
    waited = sum(row.wait_s for row in rows)
    cpu = [row.cpu_s for row in rows]
    steps = [row.steps for row in rows]
    return Measured(
        framework="profile", loader_class=reports[0].loader_class if reports else None,
        dataset_bytes=fullest.dataset_bytes, samples=job.facts.samples, nnodes=len(nodes), world_size=world_size,
        copies=fullest.copies, copies_low=fullest.copies_low, copies_high=fullest.copies_high,
        duplicate_bytes=fullest.duplicate_bytes, retained_bytes=fullest.retained_bytes,
        inflight_bytes=fullest.inflight_bytes, pss_peak_bytes=fullest.pss_peak_bytes,
        samples_per_s=distinct / slowest if slowest else None,
        bytes_per_s=(
            sum(report.batch_bytes for report in reports) * distinct / delivered / slowest if slowest and delivered else None
        ),
        stall_ratio=waited / (waited + computed) if computed else None,
        first_batch_s=max((row.first_batch_s for row in rows if row.first_batch_s is not None), default=None),
        cpu_s_per_1k_samples=(
            1000 * sum(c for c in cpu if c is not None) / distinct if distinct and None not in cpu else None
        ),
        delivered=last.delivered if last else None, distinct=last.distinct if last else None,
        duplicates=last.duplicates if last else None, missing=last.missing if last else None,
        steps_min=min(steps, default=None), steps_max=max(steps, default=None),
        order_hash=_run_hash(audits),
        monitor_cpu_s=fullest.monitor_cpu_s,
    )


def _run_hash(audits: tuple[Audit, ...]) -> str | None:
    hashes = [audit.order_hash for audit in audits]
    return hashes[-1] if hashes else None

"""How many copies of the dataset a node holds: its memory, less that of the control, per byte of dataset."""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.engine.job import Job
from shardlab.engine.report import EpochReport
from shardlab.measure.kernel import Capabilities
from shardlab.measure.monitor import MonitorEnd
from shardlab.measure.reading import HoldReading
from shardlab.records import NodeRecord

NOISE_BYTES_PER_PROCESS = 4 << 20
"""How far used memory strays from the truth, per process; measured by experiments/copies_against_truth.py."""
TRAINING_NOISE_BYTES_PER_PROCESS = 8 << 20
"""The same in training, where a network's temporaries pass through the allocators: up to 4.4 MiB were seen."""


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
class Copies:
    """How many copies of the dataset a node holds, with the interval that the control's noise leaves."""

    value: float
    low: float
    high: float

    @classmethod
    def of(
        cls, used: int, control_used: int, dataset_bytes: int, control_bytes: int, noise: int
    ) -> Copies | None:
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


def node_record(
    job: Job, outcome: NodeOutcome, reports: tuple[EpochReport, ...]
) -> tuple[NodeRecord, dict[str, str]]:
    """The node's row, and the reason for each of its empty cells."""
    hold, reasons = outcome.hold, {}
    size = stored_bytes(job, reports)
    copies, reason = _copies(outcome, size, job.facts.reason, trains=job.train is not None)
    if copies is None:
        reasons["copies"] = reason
    elif hold is not None and hold.reasons:
        reasons["copies may be off"] = ", ".join(hold.reasons.values())
    inflight = None
    if reports:
        inflight = (
            outcome.local_world_size
            * job.config.workers
            * job.config.prefetch_factor
            * max(report.largest_batch_bytes for report in reports)
            if job.config.workers
            else 0
        )
    record = NodeRecord(
        run_id=job.run_id,
        node=outcome.node,
        local_world_size=outcome.local_world_size,
        processes=hold.processes if hold else None,
        unreadable=hold.unreadable if hold else None,
        dataset_bytes=size,
        copies=copies.value if copies else None,
        copies_low=copies.low if copies else None,
        copies_high=copies.high if copies else None,
        used_bytes=hold.used_bytes if hold else None,
        control_bytes=outcome.control.used_bytes if outcome.control else None,
        duplicate_bytes=max(0, round((copies.value - 1) * size)) if copies and size else None,
        data_private_bytes=_more(hold, outcome.control, "anon_bytes"),
        data_shared_bytes=_more(hold, outcome.control, "shmem_bytes", "memfd_untouched_bytes"),
        data_file_bytes=_more(hold, outcome.control, "file_resident_bytes"),
        retained_bytes=_retained(hold, outcome.control),
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


def census_copies(job: Job, outcome: NodeOutcome, size: int | None) -> tuple[float | None, str]:
    """Copies by content: the first, and what is there again beyond what repeats in the control; or why not.

    Equal Python objects have no page in common, so that their copies are not seen by content.
    """
    hold, control, stand_in = outcome.hold, outcome.control, outcome.control_dataset_bytes
    if not job.census:
        return None, "no census was asked for (--census)"
    if job.facts.objects:
        return None, "equal Python objects differ by page: copies of them cannot be seen by content"
    if hold is None or hold.census_duplicate_bytes is None:
        why = hold.reasons.get("census", "") if hold else ""
        return None, why or "the ranks were never held to read their memory"
    if control is None or control.census_duplicate_bytes is None or stand_in is None or not size or size <= stand_in:
        return None, outcome.why or "the control run gave no reading"
    more = hold.census_duplicate_bytes - control.census_duplicate_bytes
    return 1 + more / (size - stand_in), ""


def _more(hold: HoldReading | None, control: HoldReading | None, *fields: str) -> int | None:
    """How much more of these the run held than its control; None where one of them is not known."""
    held, before = (_sum_of(reading, fields) for reading in (hold, control))
    return None if held is None or before is None else held - before


def _sum_of(reading: HoldReading | None, fields: tuple[str, ...]) -> int | None:
    values = [getattr(reading, name, None) for name in fields]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _retained(hold: HoldReading | None, control: HoldReading | None) -> int | None:
    """What the allocators gave back when told to, beyond what those of the control gave back."""
    if hold is None or hold.retained_bytes is None:
        return None
    return max(0, hold.retained_bytes - ((control.retained_bytes if control else None) or 0))


def _copies(outcome: NodeOutcome, size: int | None, no_size: str, *, trains: bool) -> tuple[Copies | None, str]:
    hold, control = outcome.hold, outcome.control
    if hold is None or hold.used_bytes is None:
        never = "the ranks were never held to read their memory"
        if outcome.end is None:
            never = "the monitor was ended before it read the memory of the ranks"
        return None, ", ".join(hold.reasons.values()) if hold else never
    if not hold.complete:
        ranks = ", ".join(str(rank) for rank in hold.absent_ranks)
        return None, f"rank {ranks} did not come to where all are held, so its memory was still moving"
    if size is None:
        return None, no_size or "the dataset's size in memory is not known"
    if control is None or control.used_bytes is None or outcome.control_dataset_bytes is None:
        return None, outcome.why or "the control run gave no reading"
    noise = (TRAINING_NOISE_BYTES_PER_PROCESS if trains else NOISE_BYTES_PER_PROCESS) * hold.processes
    copies = Copies.of(hold.used_bytes, control.used_bytes, size, outcome.control_dataset_bytes, noise)
    if copies is None:
        small = (
            f"the dataset holds {size / 2**20:.1f} MiB in memory, its stand-in "
            f"{outcome.control_dataset_bytes / 2**20:.1f} MiB: the difference is not clear of the "
            f"{noise / 2**20:.0f} MiB by which a run differs from itself"
        )
        return None, small
    return copies, ""

"""Records as a run would leave them, made by hand: every figure is given or is nothing special."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from shardlab.config import RunConfig
from shardlab.dataset import DatasetFacts, DatasetSpec
from shardlab.engine.job import Job
from shardlab.engine.report import EpochReport
from shardlab.index.audit import Audit
from shardlab.launch.copies import NodeOutcome
from shardlab.launch.summary import Outcome
from shardlab.measure.kernel import Capabilities
from shardlab.measure.reading import HoldReading
from shardlab.plan import resolve
from shardlab.records import Measured, NodeRecord, RankRecord, RunRecord

MIB = 1 << 20
ZERO = {"node": "here", "epoch": 1, "pid": 100, "run_id": "run", "order_hash": None}


def nothing(cls: Any, **given: Any) -> Any:
    """A record whose fields are None but for those that are given."""
    return cls(**{field.name: None for field in fields(cls)} | given)


def rank_row(rank: int, **given: Any) -> RankRecord:
    figures = {
        "reads": 10, "delivered": 10, "distinct": 10, "duplicates": 0, "steps": 5, "len_reported": 5,
        "wait_s": 0.5, "compute_s": 0.0, "other_s": 0.25,
    }  # fmt: skip
    return nothing(RankRecord, **ZERO | figures | {"rank": rank} | given)


def report(rank: int, **given: Any) -> EpochReport:
    ours = {"wall_s": 1.0, "batch_bytes": 1000, "largest_batch_bytes": 200, "stored_bytes": None}
    kept = {name: given.pop(name) for name in list(given) if name in ours}
    return EpochReport(
        row=rank_row(rank, **given), reads_by_worker=(), loader_class="torch.DataLoader", **ours | kept
    )


def node(**given: Any) -> NodeRecord:
    figures = {"run_id": "run", "node": "here", "local_world_size": 4, "unreadable": 0}
    return nothing(NodeRecord, **figures | given)


def outcome(
    nodes: Any = (), reports: Any = (), audits: Any = (), measured: Any = None, **flags: Any
) -> Outcome:
    config = resolve(RunConfig(**flags)).config
    run = RunRecord(1, "run", "now", None, 0, config, Measured(**measured or {}))
    return Outcome(run, tuple(nodes), tuple(reports), tuple(audits))


def audit(*findings: Any, **given: Any) -> Audit:
    figures = {"delivered": 0, "distinct": 0, "duplicates": 0, "missing": 0, "order_hash": None}
    return Audit(**figures | given, findings=findings)


def job(folder: Path, samples: int | None = 40, dataset_bytes: int | None = 400 * MIB, **flags: Any) -> Job:
    config = resolve(RunConfig(**flags)).config
    facts = DatasetFacts(samples, dataset_bytes, {"kind": "int"})
    return Job("run", str(folder), config, DatasetSpec(config.dataset, seed=config.seed), facts)


def reading(used_bytes: int | None, **given: Any) -> HoldReading:
    figures = {
        "epoch": 1, "t_s": 0.0, "complete": True, "absent_ranks": (), "processes": 5, "unreadable": 0,
        "by_role": {}, "by_rank": {}, "rank_process": {}, "hold_s": 0.0, "reasons": {}, "retained_bytes": 0,
    }  # fmt: skip
    return nothing(HoldReading, **figures | {"used_bytes": used_bytes} | given)


def node_outcome(hold: HoldReading | None, control: HoldReading | None, **given: Any) -> NodeOutcome:
    limits = Capabilities(True, True, True, None, None, None, None)
    base = nothing(NodeOutcome, node="here", local_world_size=4, why="", limits=limits)
    return replace(base, hold=hold, control=control, **given)

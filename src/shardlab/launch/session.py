"""A whole measurement on this node: size the dataset, run the ranks, run the control, keep the rows."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from shardlab import dataset, plugins
from shardlab.config import OutputConfig, RunConfig
from shardlab.dataset import DatasetFacts, DatasetSpec
from shardlab.engine.job import Control, Job
from shardlab.engine.rank import freeze_what_is_not_data
from shardlab.engine.report import EpochReport, load_reports
from shardlab.engine.source import source
from shardlab.errors import ShardlabError, UsageError
from shardlab.launch import control as controls
from shardlab.launch import probe, rundir
from shardlab.launch.agent import launch
from shardlab.launch.control import ControlReading, ControlRequest
from shardlab.launch.copies import NodeOutcome
from shardlab.launch.rows import keep
from shardlab.launch.spec import spec_of
from shardlab.launch.summary import Outcome, outcome_of
from shardlab.launch.watch import Watched, monitored
from shardlab.measure import kernel
from shardlab.process import prints_to_stderr
from shardlab.shards import writer
from shardlab.store import warm_ratio
from shardlab.trainconfig import TrainConfig
from shardlab.world import host_name


class Viewer(Protocol):
    """Who is told what goes on meanwhile."""

    def phase(self, text: str) -> None:
        """Something else begins."""

    def watch(self, run_dir: Path) -> None:
        """Time passes; the ranks' progress lies in ``run_dir``."""


def run(
    config: RunConfig, output: OutputConfig, argv: list[str], view: Viewer, train: TrainConfig | None = None
) -> Iterator[Outcome]:
    """Measure ``config.repeats`` times, each in fresh processes; one control serves all.

    Rows are appended after each run was seen. A run that fails leaves its row before its error is raised.
    """
    spec = spec_of(config)
    results = str(Path(output.results).resolve())
    facts: DatasetFacts | None = None
    control: ControlReading | None = None
    for _ in range(config.repeats):
        with rundir.run_folder() as folder:
            if facts is None:
                view.phase("sizing the dataset")
                facts = checked(probe.facts_of(spec, folder, output.timeout), config)
            job = new_job(config, spec, facts, folder, results, output.timeout, train)
            outcome, control = _measure(job, output, argv, view, control)
            yield outcome  # shown before it is kept: a full disk must not take the table too
            keep(outcome, output, job)


def _measure(
    job: Job, output: OutputConfig, argv: list[str], view: Viewer, control: ControlReading | None
) -> tuple[Outcome, ControlReading | None]:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    environment = kernel.environment()
    watched = Watched()
    view.phase("measuring")
    try:
        run_ranks(job, view, watched)
    except ShardlabError as error:
        node = node_outcome(job, job.config.nproc, watched, None, "the run failed")
        keep(outcome_of(job, started, [node], load_reports(job.folder), environment, str(error)), output, job)
        raise
    reports = load_reports(job.folder)
    if control is None:
        view.phase("control run")
        control = controls.measure(
            job, job.config.nproc, argv, steps_left(reports), joined=False, timeout_s=output.timeout
        )
    node = node_outcome(job, job.config.nproc, watched, control)
    return outcome_of(job, started, [node], reports, environment), control


def run_control(
    request: ControlRequest, config: RunConfig, timeout_s: float, train: TrainConfig | None = None
) -> None:
    """This process is a control run: measure the stand-ins and hand the reading back."""
    with rundir.run_folder() as folder:
        job = control_job(request, config, folder, timeout_s, train)
        watched = Watched()
        run_ranks(job, SILENT, watched)
        controls.answer(request, control_reading(job, watched))


def control_job(
    request: ControlRequest, config: RunConfig, folder: Path, timeout_s: float, train: TrainConfig | None
) -> Job:
    """The job of a control run."""
    config = replace(config, nproc=request.nproc, max_steps=request.control.steps)
    job = new_job(config, request.spec, request.facts, folder, None, timeout_s, train)
    job = replace(job, control=request.control)
    if dataset.kind_of(request.spec) == "shards":
        job = _on_disk(job, request.control)
    job.save()
    return job


def _on_disk(job: Job, control: Control) -> Job:
    """A folder of shards stands in for a folder of shards: what the steps need, or half of the samples."""
    samples = min(
        control.steps * job.config.nproc * job.config.batch_size, max(1, (job.facts.samples or 0) // 2)
    )
    spec = DatasetSpec(str(job.folder / "shards"))
    if not Path(spec.text).exists():
        writer.write(dataset.stand_in(job.facts, samples), Path(spec.text))
    facts = dataset.facts_without_building(spec)
    assert facts is not None
    return replace(job, spec=spec, facts=facts, control=replace(control, samples=samples, on_disk=True))


def control_reading(job: Job, watched: Watched) -> ControlReading:
    """What a control run has to say."""
    assert job.control is not None
    stored = [report.stored_bytes for report in load_reports(job.folder) if report.stored_bytes is not None]
    size = stored[0] if stored else controls.stand_in_bytes(job.facts, job.control.samples)
    return ControlReading(watched.hold, size)


def run_ranks(job: Job, view: Viewer, watched: Watched) -> None:
    """The ranks from start to end under the monitor's eyes."""
    inherited: list[Any] = []
    if plugins.find("store")[job.config.store].fact("BUILDS_IN_LAUNCHER"):
        with prints_to_stderr():
            freeze_what_is_not_data(job)  # the ranks inherit this too
            inherited.append(source(job))
    with monitored(job, range(job.config.nproc), os.getpid(), watched):
        launch(job, view.watch, *inherited)
    inherited.clear()
    gc.unfreeze()
    gc.collect()


def checked(facts: DatasetFacts, config: RunConfig) -> DatasetFacts:
    """The facts, where the data path and the store can work with such a dataset."""
    if facts.iterable and config.store not in ("private", "inherited"):
        raise UsageError(
            f"--store {config.store} needs a dataset with a length and indices",
            f"{config.dataset}, which is iterable",
            ["private", "inherited"],
        )
    return facts


def new_job(
    config: RunConfig,
    spec: DatasetSpec,
    facts: DatasetFacts,
    folder: Path,
    results: str | None,
    timeout_s: float,
    train: TrainConfig | None = None,
) -> Job:
    """A job with a new run id, written down for its ranks."""
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"
    job = Job(run_id, str(folder), config, spec, facts, results=results, timeout_s=timeout_s, train=train)
    job.save()
    return job


def node_outcome(
    job: Job, local_world_size: int, watched: Watched, control: ControlReading | None, why: str = ""
) -> NodeOutcome:
    """What this node measured, its limits included."""
    return NodeOutcome(
        node=host_name(),
        local_world_size=local_world_size,
        hold=watched.hold,
        end=watched.end,
        control=control.hold if control else None,
        control_dataset_bytes=control.dataset_bytes if control else None,
        why=control.why if control else why,
        limits=kernel.capabilities(),
        shm_free_bytes=kernel.shm_free_bytes(),
        warm_ratio=warm_ratio(job.folder),
    )


def steps_left(reports: tuple[EpochReport, ...]) -> int:
    """Batches still to come when the ranks were held: one, or more where ``--max-steps`` cuts the epoch."""
    lengths = [report.row.len_reported for report in reports if report.row.len_reported is not None]
    steps = max((report.row.steps for report in reports), default=1)
    return max(1, max(lengths, default=steps) - (steps - 1))


class _Silent:
    def phase(self, text: str) -> None:
        pass

    def watch(self, run_dir: Path) -> None:
        pass


SILENT: Viewer = _Silent()
"""Tells nobody."""

"""This process is the control of a run: stand-ins in the place of its dataset, and the reading handed back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardlab import dataset
from shardlab.config import OutputConfig, RunConfig
from shardlab.dataset import DatasetSpec
from shardlab.engine.job import Control, Job
from shardlab.engine.report import load_reports
from shardlab.launch import control as controls
from shardlab.launch import rundir
from shardlab.launch.control import ControlReading, ControlRequest
from shardlab.launch.session import SILENT, new_job, run_ranks
from shardlab.launch.watch import Watched
from shardlab.shards import writer
from shardlab.trainconfig import TrainConfig


def run_control(
    request: ControlRequest, config: RunConfig, output: OutputConfig, train: TrainConfig | None = None
) -> None:
    """This process is a control run: measure the stand-ins and hand the reading back."""
    with rundir.run_folder() as folder:
        job = control_job(request, config, folder, output, train)
        watched = Watched()
        run_ranks(job, SILENT, watched)
        controls.answer(request, control_reading(job, watched))


def control_job(
    request: ControlRequest, config: RunConfig, folder: Path, output: OutputConfig, train: TrainConfig | None
) -> Job:
    """The job of a control run."""
    config = replace(config, nproc=request.nproc, max_steps=request.control.steps)
    job = new_job(
        config, request.spec, request.facts, folder, None, output.timeout, train,
        pss_timeline=output.pss_timeline, census=output.census,
    )
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
    return ControlReading(watched.hold, size, end=watched.end)

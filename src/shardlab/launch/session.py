"""A whole measurement on this node: size the dataset, run the ranks, run the control, keep the rows."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from shardlab import plugins
from shardlab.config import OutputConfig, RunConfig
from shardlab.dataset import DatasetFacts, DatasetSpec
from shardlab.engine.job import Job
from shardlab.engine.rank import freeze_what_is_not_data
from shardlab.engine.report import EpochReport, load_reports
from shardlab.engine.source import source
from shardlab.errors import Interrupted, ShardlabError, UsageError
from shardlab.launch import control as controls
from shardlab.launch import probe, rundir
from shardlab.launch.agent import launch
from shardlab.launch.control import NO_CONTROL, ControlReading
from shardlab.launch.copies import NodeOutcome
from shardlab.launch.rows import keep
from shardlab.launch.spec import spec_of
from shardlab.launch.summary import Outcome, outcome_of
from shardlab.launch.watch import Watched, monitored
from shardlab.measure import kernel
from shardlab.process import prints_to_stderr
from shardlab.records import new_run_id
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
    measurement = Measurement(config, output, argv, train)
    for repeat in range(config.repeats):
        with measurement.measured(view, repeat) as outcome:
            yield outcome  # shown before it is kept: a full disk must not take the table too


@dataclass
class Measurement:
    """One configuration, measured as often as one likes: its dataset is sized once, its control run once.

    ``facts`` may be given where the dataset was sized before; ``comparison`` names the runs that belong together.
    """

    config: RunConfig
    output: OutputConfig
    argv: list[str]
    train: TrainConfig | None = None
    facts: DatasetFacts | None = None
    comparison: str | None = None
    control: ControlReading | None = None
    ended: NodeOutcome | None = None

    @contextmanager
    def measured(self, view: Viewer, repeat: int = 0) -> Iterator[Outcome]:
        """One run in fresh processes, and the control where there was none; rows are appended on leaving.

        A run that fails leaves its row and raises its error.
        """
        results = str(Path(self.output.results).resolve())
        with rundir.run_folder() as folder:
            if self.facts is None:
                self.facts = sized(self.config, self.output, view, folder)
            job = new_job(
                self.config, spec_of(self.config), checked(self.facts, self.config), folder, results,
                self.output.timeout, self.train, comparison=self.comparison, repeat=repeat,
                pss_timeline=self.output.pss_timeline, census=self.output.census,
            )  # fmt: skip
            outcome = self._run(job, view)
            yield outcome
            keep(outcome, self.output, job)

    def _run(self, job: Job, view: Viewer) -> Outcome:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        environment = kernel.environment()
        watched = Watched()
        view.phase("measuring")
        try:
            run_ranks(job, view, watched)
        except ShardlabError as error:
            status = "interrupted" if isinstance(error, Interrupted) else "failed"
            node = node_outcome(job, job.config.nproc, watched, None, "the run failed")
            keep(
                outcome_of(job, started, [node], load_reports(job.folder), environment, str(error), status),
                self.output, job,
            )  # fmt: skip
            raise
        reports = load_reports(job.folder)
        if self.control is None:
            self.control = self._control(job, steps_left(reports), view)
        self.ended = node_outcome(job, job.config.nproc, watched, self.control)
        return outcome_of(job, started, [self.ended], reports, environment)

    def _control(self, job: Job, left: int, view: Viewer) -> ControlReading:
        if not self.output.control:
            return NO_CONTROL
        view.phase("control run")
        return controls.measure(
            job, job.config.nproc, self.argv, left, joined=False, timeout_s=self.output.timeout
        )


def sized(config: RunConfig, output: OutputConfig, view: Viewer, folder: Path) -> DatasetFacts:
    """What the dataset is and what one copy of it weighs; ``folder`` is a run's."""
    view.phase("sizing the dataset")
    return probe.facts_of(spec_of(config), folder, output.timeout)


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
    *,
    comparison: str | None = None,
    repeat: int = 0,
    pss_timeline: bool = False,
    census: bool = False,
) -> Job:
    """A job with a new run id, written down for its ranks."""
    job = Job(
        new_run_id(), str(folder), config, spec, facts, results=results, timeout_s=timeout_s, train=train,
        comparison=comparison, repeat=repeat, pss_timeline=pss_timeline, census=census,
    )  # fmt: skip
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


@dataclass(frozen=True)
class Prefixed:
    """A view that says which of several runs goes on."""

    view: Viewer
    prefix: str

    def phase(self, text: str) -> None:
        """Something else begins."""
        self.view.phase(f"{self.prefix}: {text}")

    def watch(self, run_dir: Path) -> None:
        """Time passes."""
        self.view.watch(run_dir)


class _Silent:
    def phase(self, text: str) -> None:
        pass

    def watch(self, run_dir: Path) -> None:
        pass


SILENT: Viewer = _Silent()
"""Tells nobody."""

"""The small runs that a prediction rests on: made one after the other, each with its control, and what they read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from shardlab import dataset
from shardlab.config import OutputConfig, RunConfig, argv_of
from shardlab.datapath.ring import HELD, QUICK_BYTES
from shardlab.dataset import DatasetFacts
from shardlab.errors import RunFailed, UsageError
from shardlab.launch import probe, rundir
from shardlab.launch.session import Measurement, Prefixed, Viewer
from shardlab.launch.spec import spec_of
from shardlab.measure.kernel import shm_free_bytes
from shardlab.predicting.model import Check, Forecast, Model, Reading, check_of, model_of, small_runs
from shardlab.predicting.node import Data, Node, node_of, shm_bytes
from shardlab.predicting.peaks import peaks_of, samples_of
from shardlab.predicting.room import (
    available_bytes,
    refuse_epochs_of_one_step,
    refuse_what_is_lost_in_noise,
    refuse_what_is_too_large_here,
    refuse_what_overflows_shm,
)
from shardlab.ring.memory import slots_for


@dataclass(frozen=True)
class Evidence:
    """What the small runs came to. ``data`` is the job's dataset, as large as it was said to be.

    ``runs`` are those that were made. ``no_size`` says why the dataset's size is not known, where it is not: what it
    costs is then in the parts of ranks and workers.
    """

    model: Model
    check: Check | None
    data: Data
    run_ids: tuple[str, ...]
    iterable: bool
    runs: tuple[RunConfig, ...] = ()
    no_size: str = ""

    def forecast(self, config: RunConfig, nnodes: int) -> Forecast:
        """What a node of ``config`` needs; a batch grows with its samples."""
        slots = slots_of(config, self.data)
        return self.model.forecast(node_of(config, self.data, nnodes=nnodes, ring_slots=slots))


def gathered(config: RunConfig, output: OutputConfig, view: Viewer, job_bytes: int | None) -> Evidence:
    """Run the small configurations of ``config``. Raises UsageError where they would not fit here themselves."""
    facts = _sized(config, output, view, job_bytes)
    in_files = dataset.supports_mapping(spec_of(config))
    sample_bytes = (facts.dataset_bytes or 0) / (facts.samples or 1)  # until a run has said what it is in a batch
    data = Data(facts.dataset_bytes or 0, facts.samples, sample_bytes, facts.objects, in_files)
    runs = small_runs(config, data)
    _refuse(runs, facts, data, job_bytes)
    readings: list[Reading] = []
    run_ids = []
    for number, small in enumerate(runs, start=1):
        refuse_what_overflows_shm(shm_bytes(small, data), shm_free_bytes())
        numbered = Prefixed(view, f"small run {number} of {len(runs)}")
        measured = Measurement(small, output, [*argv_of(small), "--pss-timeline"], facts=facts)
        with measured.measured(numbered) as outcome:
            largest = max(report.largest_batch_bytes for report in outcome.reports)
            data = replace(data, sample_bytes=largest / min(small.batch_size, facts.samples or small.batch_size))
            run_ids.append(outcome.run.run_id)
        data = replace(data, moved=data.moved or was_moved(measured, data))
        readings += readings_of(measured, run_ids[-1], data)[: 1 if facts.dataset_bytes is None else None]
    check = check_of(readings, objects=facts.objects) if len(runs) > 2 else None
    job = data if job_bytes is None else data.grown(job_bytes)
    no_size = "" if facts.dataset_bytes is not None else facts.reason or "the reason is not known"
    model = model_of(readings, objects=facts.objects)
    return Evidence(model, check, job, tuple(run_ids), facts.iterable, tuple(runs), no_size)


def _sized(config: RunConfig, output: OutputConfig, view: Viewer, job_bytes: int | None) -> DatasetFacts:
    view.phase("sizing the dataset")
    with rundir.run_folder() as folder:
        facts = probe.facts_of(spec_of(config), folder, output.timeout)
    if job_bytes is not None and not facts.dataset_bytes:
        raise UsageError(
            "--dataset-bytes scales the dataset's size, which is not known", facts.reason or "an unknown size",
            cure="leave it out",
        )  # fmt: skip
    return facts


def _refuse(runs: list[RunConfig], facts: DatasetFacts, data: Data, job_bytes: int | None) -> None:
    """Raise UsageError for small runs that would fill this machine, or show nothing."""
    refuse_epochs_of_one_step(runs, facts.samples)
    largest = max(runs, key=lambda run: _node(run, data).processes)
    processes = _node(largest, data).processes
    round_samples = largest.nproc * largest.batch_size
    refuse_what_is_lost_in_noise(facts, processes, round_samples, job_bytes)
    refuse_what_is_too_large_here(runs, facts, available_bytes(), in_files=data.in_files)


def was_moved(measured: Measurement, data: Data) -> bool:
    """Whether ranks moved the dataset to shared memory to hand it to workers that were not forked from them."""
    run, control, config = measured.ended, measured.control, measured.config
    if config.store != "private" or not config.workers or config.worker_start_method == "fork" or not data.nbytes:
        return False
    held = [each.hold.shmem_bytes if each and each.hold else None for each in (run, control)]
    known = [nbytes for nbytes in held if nbytes is not None]
    return len(known) == len(held) and known[0] - known[1] > config.nproc * data.nbytes / 2


def readings_of(measured: Measurement, run_id: str, data: Data) -> list[Reading]:
    """Two equations: the run, and its control, whose dataset is a few stand-ins. Raises RunFailed for want of one.

    The second says nothing where the size of the dataset is not known.
    """
    run, control, config = measured.ended, measured.control, measured.config
    if run is None or run.hold is None or control is None or control.hold is None or control.end is None:
        why = control.why if control and control.why else "its ranks were never held to read their memory"
        raise RunFailed(f"a small run or its control gave no reading: {why}")
    rows = samples_of(Path(measured.output.results) / "memory.csv", run_id)
    building, feeding = peaks_of(rows, config.nproc, run.hold.t_s)
    small = replace(data, nbytes=control.dataset_bytes or 0, samples=None)
    held = [(hold.used_bytes or 0) + (hold.retained_bytes or 0) for hold in (run.hold, control.hold)]
    if not all(held):
        raise RunFailed(f"memory in use is not known: {run.hold.reasons.get('used_bytes', 'the control gave none')}")
    sent = control.end.feeding_peak_bytes if config.workers and config.worker_start_method != "fork" else None
    return [
        Reading(_node(config, data), held[0], building, max(feeding, held[0])),
        Reading(_node(config, small), held[1], None, sent),
    ]


def _node(config: RunConfig, data: Data) -> Node:
    return node_of(config, data, ring_slots=slots_of(config, data))


def slots_of(config: RunConfig, data: Data) -> int:
    """How many slots a ring of this configuration has, as its data path makes it; 0 for other paths."""
    if config.sampler != "ring":
        return 0
    part = max(1, int(config.batch_size * data.sample_bytes))
    return slots_for(max(1, config.workers), max(HELD, QUICK_BYTES // (config.nproc * part)))

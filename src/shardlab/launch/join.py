"""As a rank of a job that another launcher started: torchrun, accelerate launch, or srun.

Every rank takes part in the run; on each node local rank 0 also keeps the monitor and runs the control;
global rank 0 gathers what all found out and prints it.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import torch.distributed as dist

from shardlab import csvlog
from shardlab.collective import broadcast_bytes, gather_bytes
from shardlab.config import OutputConfig, RunConfig
from shardlab.engine import lifeline, rank
from shardlab.engine.job import Job
from shardlab.engine.report import EpochReport, load_reports
from shardlab.errors import RunFailed, ShardlabError, UsageError
from shardlab.launch import control as controls
from shardlab.launch import control_run, probe, rundir, session
from shardlab.launch.copies import NodeOutcome
from shardlab.launch.rows import keep, keep_all_ledgers
from shardlab.launch.spec import spec_of
from shardlab.launch.summary import Outcome, ledger_file, outcome_of
from shardlab.launch.watch import Watched, monitored
from shardlab.measure import kernel
from shardlab.process import (
    call_no_semaphores_leaked,
    die_with_parent,
    ignore_lost_connections,
    remove_run_folder,
)
from shardlab.trainconfig import TrainConfig
from shardlab.world import World


@dataclass(frozen=True)
class Share:
    """What one rank sends to rank 0 at the end; ``node`` comes from local rank 0 of each node."""

    reports: tuple[EpochReport, ...]
    node: NodeOutcome | None


def run(
    config: RunConfig, output: OutputConfig, argv: list[str], train: TrainConfig | None = None
) -> Outcome | None:
    """The whole job, seen from this rank. The outcome on global rank 0, None on the others.

    Raises the failing rank's own error on that rank; ranks that merely lost it leave without a word.
    """
    die_with_parent()
    call_no_semaphores_leaked()
    rundir.sign_semaphores()
    lifeline.leave_quietly_on_signals()
    ignore_lost_connections()
    world = World.from_env()
    refuse_disagreement(world)
    if config.repeats > 1:
        raise UsageError(
            "--repeats needs fresh processes for each run", config.repeats, [1], "start the job again"
        )
    dist.init_process_group(
        "gloo" if config.device == "cpu" else "cpu:gloo,cuda:nccl",
        timeout=timedelta(seconds=min(output.timeout, rank.SILENCE_S)),
    )
    request = controls.requested()
    folder = Path(_from_leader(world, str(rundir.create()) if world.is_node_leader else ""))
    if world.is_node_leader:
        lifeline.leave_quietly_on_signals(folder)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    watched = Watched()
    try:
        job = _agree_on_job(config, output, world, folder, request, train)
        with monitored(job, _local_ranks(world), None, watched) if world.is_node_leader else nullcontext():
            dist.barrier()  # the monitor of this node is up before any rank looks for it
            rank.run(job, world)
        if request is not None:
            if world.is_node_leader:
                controls.answer(request, control_run.control_reading(job, watched))
            return None
        return _bring_together(job, output, argv, world, watched, started)
    except BaseException as error:
        lifeline.forget_workers()
        failure = lifeline.write_failure(folder, world.rank, error)
        _keep_what_was_delivered(folder)
        if failure.is_echo:
            if world.is_node_leader:
                remove_run_folder(folder)
            os._exit(failure.exit_code)
        if failure.where and not failure.expected:
            raise RunFailed(probe.describe_failure(f"rank {world.rank} failed", failure)) from None
        raise
    finally:
        if world.is_node_leader:
            remove_run_folder(folder)


def _keep_what_was_delivered(folder: Path) -> None:
    """The ledgers of training that failed, of this node's ranks: by any rank that still lives, as one may not."""
    with suppress(OSError, ShardlabError, msgspec.DecodeError):  # what is told is why it failed
        job = Job.load(folder)
        if job.train is not None and job.results is not None:
            keep_all_ledgers(Path(job.results) / "ledger", job)


def refuse_disagreement(world: World) -> None:
    """Refuse where the scheduler and the launcher's variables give this process different places."""
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env or env.get("SLURM_NTASKS") != str(world.world_size):
        return  # the scheduler started launchers, not ranks
    if env.get("SLURM_PROCID", str(world.rank)) != str(world.rank):
        raise UsageError(
            "RANK must be this task's SLURM_PROCID",
            f"RANK={world.rank}, SLURM_PROCID={env['SLURM_PROCID']}",
            cure="export RANK=$SLURM_PROCID inside srun, for each task",
        )


def _local_ranks(world: World) -> range:
    first = world.rank - world.local_rank
    return range(first, first + world.local_world_size)


def _from_leader(world: World, text: str) -> str:
    """The text that local rank 0 of this node has."""
    every = gather_bytes(text.encode(), to_all=True)
    return every[world.rank - world.local_rank].decode()


def _agree_on_job(
    config: RunConfig,
    output: OutputConfig,
    world: World,
    folder: Path,
    request: controls.ControlRequest | None,
    train: TrainConfig | None,
) -> Job:
    """Rank 0 sizes the dataset and names the run; each node keeps it in a folder of its own."""
    config = replace(config, nproc=world.local_world_size)
    results = str(Path(output.results).resolve())
    said = b""
    if world.rank == 0:
        said = _job_or_error(config, output, folder, results, request, train)
    said = broadcast_bytes(said)
    if said.startswith(b"!"):
        if world.rank == 0:
            code, _, text = said[1:].decode().partition(" ")
            error = ShardlabError(text)
            error.exit_code = type(error.exit_code)(int(code))
            raise error
        if world.is_node_leader:
            remove_run_folder(folder)
        os._exit(1)  # rank 0 says what is wrong
    job = replace(msgspec.json.decode(said, type=Job), run_dir=str(folder), joined=True)
    if world.is_node_leader:
        job.save()
    return job


def _job_or_error(
    config: RunConfig,
    output: OutputConfig,
    folder: Path,
    results: str,
    request: controls.ControlRequest | None,
    train: TrainConfig | None,
) -> bytes:
    try:
        if request is not None:
            return msgspec.json.encode(control_run.control_job(request, config, folder, output, train))
        csvlog.check_writable(Path(results))
        spec = spec_of(config)
        facts = session.checked(probe.facts_of(spec, folder, output.timeout), config)
        return msgspec.json.encode(session.new_job(
            config, spec, facts, folder, results, output.timeout, train,
            pss_timeline=output.pss_timeline, census=output.census,
        ))
    except ShardlabError as error:
        return f"!{int(error.exit_code)} {error}".encode()


def _bring_together(
    job: Job, output: OutputConfig, argv: list[str], world: World, watched: Watched, started: str
) -> Outcome | None:
    mine = load_reports(job.folder)
    node = None
    if world.is_node_leader:
        reading = controls.NO_CONTROL
        if output.control:
            reading = controls.measure(
                job, world.local_world_size, argv, session.steps_left(mine), joined=True,
                timeout_s=output.timeout,
            )  # fmt: skip
        node = session.node_outcome(job, world.local_world_size, watched, reading)
    share = Share(tuple(report for report in mine if report.row.rank == world.rank), node)
    shares = [msgspec.msgpack.decode(raw, type=Share) for raw in gather_bytes(msgspec.msgpack.encode(share))]
    _collect_ledgers(job, world, sorted({report.row.epoch for report in mine}))
    outcome = None
    if world.rank == 0:
        reports = tuple(
            sorted((r for s in shares for r in s.reports), key=lambda r: (r.row.epoch, r.row.rank))
        )
        nodes = [s.node for s in shares if s.node is not None]
        outcome = outcome_of(job, started, nodes, reports, kernel.environment())
        csvlog.append(Path(job.results or ""), "ranks.csv", _rows_from_elsewhere(job, reports))
        keep(outcome, output, job)
    dist.barrier()  # no node clears its folder while another still reads
    return outcome


def _collect_ledgers(job: Job, world: World, epochs: list[int]) -> None:
    """Put the ledgers of ranks on other nodes beside those of this one, on rank 0."""
    for epoch in epochs:
        for suffix in ("", ".ends", ".words"):
            file = Path(f"{ledger_file(job.folder, epoch, world.rank)}{suffix}")
            every = gather_bytes(file.read_bytes() if file.exists() else b"")
            for number, raw in enumerate(every):
                theirs = Path(f"{ledger_file(job.folder, epoch, number)}{suffix}")
                if raw and not theirs.exists():
                    theirs.write_bytes(raw)


def _rows_from_elsewhere(job: Job, reports: tuple[EpochReport, ...]) -> list[object]:
    """Rows of ranks whose node writes to another disk than this one's."""
    known = {
        (row["run_id"], row["epoch"], row["rank"])
        for row in csvlog.read_rows(Path(job.results or "") / "ranks.csv")
        if row["run_id"] == job.run_id
    }
    return [r.row for r in reports if (job.run_id, str(r.row.epoch), str(r.row.rank)) not in known]

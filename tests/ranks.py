"""Ranks for tests: real processes in a real process group, started in a tenth of a second.

A server that has torch and Accelerate loaded, and what a first optimiser would load, forks a launcher, and the
launcher forks the ranks (as it must for ``--store inherited``, whose dataset it builds). What is left out of a
run is torch's elastic agent and the monitor, both of which have tests of their own. Whatever ends the launcher
ends the ranks and their workers.
"""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from shardlab.config import RunConfig
from shardlab.dataset import DatasetFacts, DatasetSpec
from shardlab.engine.job import Job
from shardlab.engine.report import EpochReport, load_reports
from shardlab.index import ledger
from shardlab.index.audit import Audit
from shardlab.index.ledger import RankLedger
from shardlab.launch import learned, probe, session, summary
from shardlab.launch.spec import spec_of
from shardlab.plan import resolve
from shardlab.process import die_with_parent
from shardlab.trainconfig import TrainConfig, resolve_training
from shardlab.world import World

DEADLINE_S = 120.0
PRELOADED = [
    "pytest", "torch", "accelerate", "numpy", "shardlab.engine.rank", "shardlab.launch.session",
    "shardlab.datapath.distributed", "shardlab.datapath.accelerate", "shardlab.datapath.sharded",
    "shardlab.store.shared", "shardlab.store.mmap", "shardlab.dataset.synthetic", "shardlab.engine.training",
    "shardlab.framework.single", "shardlab.framework.ddp", "shardlab.framework.accelerate", "torch._dynamo",
]  # fmt: skip

Target = Callable[..., Any]


class RanksFailed(AssertionError):
    """Ranks that did not end well. ``errors`` has the type, text and traceback of each that failed, by rank."""

    def __init__(self, errors: dict[int, tuple[str, str, str]]) -> None:
        lines = [f"rank {rank}: {kind}: {text}\n{trace}" for rank, (kind, text, trace) in errors.items()]
        super().__init__("\n".join(lines))
        self.errors = errors


@dataclass(frozen=True)
class Ran:
    """What a run left behind. ``ledgers`` are by (epoch, rank)."""

    job: Job
    reports: tuple[EpochReport, ...]
    audits: tuple[Audit, ...]
    ledgers: dict[tuple[int, int], RankLedger]

    @property
    def losses(self) -> list[float]:
        """Of training, step after step through all epochs: the mean over the ranks."""
        return [row.loss for row in learned.curve(self.job.run_id, self.reports)]

    @property
    def findings(self) -> list[str]:
        """What the audits of all epochs found, by name."""
        return [finding.name for audit in self.audits for finding in audit.findings]

    def by_rank(self, column: str, epoch: int | None = None) -> list[Any]:
        """A column of the ranks' rows of an epoch, the last one unless told."""
        epoch = self.reports[-1].row.epoch if epoch is None else epoch
        return [getattr(report.row, column) for report in self.reports if report.row.epoch == epoch]

    def got(self, epoch: int | None = None) -> list[list[list[int]]]:
        """The indices of an epoch: by rank, step and place."""
        epoch = self.reports[-1].row.epoch if epoch is None else epoch
        return [batches(kept) for (number, _), kept in sorted(self.ledgers.items()) if number == epoch]


def batches(kept: RankLedger) -> list[list[int]]:
    """A ledger's indices, step by step."""
    starts = [0, *kept.ends.tolist()]
    return [kept.indices[a:b].tolist() for a, b in pairwise(starts)]


def run(folder: Path, environment: Mapping[str, str] | None = None, **flags: Any) -> Ran:
    """One run of the ranks that the flags ask for; with ``train`` among them a model is trained."""
    return run_all(folder, [flags], environment)[0]


def run_all(
    folder: Path, many: Sequence[dict[str, Any]], environment: Mapping[str, str] | None = None
) -> list[Ran]:
    """Several runs in the same ranks, one after another; all have one ``nproc`` and one ``store``.

    ``environment`` is what the ranks find in theirs.
    """
    jobs = [new_job(folder / f"run-{number}", **flags) for number, flags in enumerate(many)]
    each_rank(_run_jobs, jobs[0], jobs, dict(environment or {}))
    return [_what_is_left(job) for job in jobs]


def new_job(folder: Path, train: TrainConfig | None = None, **flags: Any) -> Job:
    """The job of a config, written to ``folder`` as the launcher would."""
    folder.mkdir(parents=True)
    config = resolve(RunConfig(**{"warmup": 0, **flags})).config
    spec = spec_of(config)
    facts = session.checked(_facts_of(spec), config)
    train = None if train is None else resolve_training(train, config, config.nproc)
    return session.new_job(config, spec, facts, folder, None, DEADLINE_S, train)


@functools.cache
def _facts_of(spec: DatasetSpec) -> DatasetFacts:
    """Found out once: the process that builds a user's dataset to size it takes seconds to start."""
    with TemporaryDirectory() as folder:
        return probe.facts_of(spec, Path(folder), DEADLINE_S)


def each_rank(target: Target, job: Job, *args: Any, deadline_s: float = DEADLINE_S) -> list[Any]:
    """``target(world, inherited, *args)`` on every rank of a job; what each of them returned, by rank.

    ``target`` is a function of a test module. Raises RanksFailed with the ranks' own words.
    """
    context = multiprocessing.get_context("forkserver")
    _preload(context)
    ours, theirs = context.Pipe(duplex=False)
    launcher = context.Process(target=_launch, args=(theirs, target, job, args, deadline_s))
    launcher.start()
    theirs.close()
    try:
        if not ours.poll(deadline_s + 20):
            raise RanksFailed({-1: ("TimeoutError", f"no rank ended within {deadline_s:g} s", "")})
        results, errors = pickle.loads(ours.recv_bytes())
    except EOFError:
        launcher.join(5)
        raise RanksFailed({-1: ("EOFError", f"the launcher ended with {launcher.exitcode}", "")}) from None
    finally:
        ours.close()
        launcher.join(5)
        if launcher.is_alive():
            launcher.kill()
            launcher.join()
    if errors:
        raise RanksFailed(errors)
    return list(results)


@functools.cache
def _preload(context: Any) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the server, and so every rank, takes it from here
    context.set_forkserver_preload(PRELOADED)


def _launch(out: Connection, target: Target, job: Job, args: tuple[Any, ...], deadline_s: float) -> None:
    """The launcher: build what is inherited, fork the ranks, serve the rendezvous, gather what they say."""
    die_with_parent()
    inherited = session.source(job) if job.config.store == "inherited" else None
    listening = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("fork")
    pipes, ranks = [], []
    for rank in range(job.config.nproc):
        ours, theirs = context.Pipe(duplex=False)
        environment = _environment(rank, job.config.nproc, listening.getsockname()[1])
        stack = job.folder / f"stack-{rank}.txt"
        process = context.Process(
            target=_rank, args=(theirs, environment, stack, deadline_s - 1, target, inherited, args)
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        ranks.append(process)
    store = _serve(listening)
    answers = _gather(pipes, ranks, monotonic() + deadline_s)
    del store
    for process in ranks:
        process.kill()
        process.join()
    for rank in set(range(len(ranks))) - set(answers):
        stack = job.folder / f"stack-{rank}.txt"
        if not any(error for _, error in answers.values()):
            answers[rank] = None, ("TimeoutError", f"running after {deadline_s:g} s", stack.read_text())
    errors = {rank: error for rank, (_, error) in answers.items() if error is not None}
    results = None if errors else [answers[rank][0] for rank in range(len(ranks))]
    out.send_bytes(pickle.dumps((results, errors)))


def _serve(listening: socket.socket) -> Any:
    """The store at which ranks meet. Made after the last fork: a rank forked while a thread of the store
    holds a lock of the C library would wait for that lock for ever.
    """
    from torch.distributed import TCPStore

    host, port = listening.getsockname()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def _gather(pipes: list[Connection], ranks: list[Any], deadline: float) -> dict[int, tuple[Any, Any]]:
    """What the ranks answer, result and error, until all have or time is up.

    After a first error the others have two seconds to say theirs: they may wait for a rank that is gone.
    """
    answers: dict[int, tuple[Any, Any]] = {}
    silent: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(pipes)}
    while silent and (ready := wait(list(silent), max(0.0, deadline - monotonic()))):
        for pipe in ready:
            rank = silent.pop(pipe)
            try:
                answers[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                ranks[rank].join()
                answers[rank] = None, ("Ended", f"without a word, exit code {ranks[rank].exitcode}", "")
            if answers[rank][1] is not None:
                deadline = min(deadline, monotonic() + 2)
    return answers


def _rank(
    out: Connection,
    environment: dict[str, str],
    stack: Path,
    patience_s: float,
    target: Target,
    inherited: Any,
    args: tuple[Any, ...],
) -> None:
    die_with_parent()
    faulthandler.dump_traceback_later(patience_s, file=stack.open("w"))
    os.environ.update(environment)
    os.dup2(2, 1)
    try:
        answer: tuple[Any, Any] = target(World.from_env(), inherited, *args), None
    except BaseException as error:
        answer = None, (type(error).__name__, str(error), traceback.format_exc())
    out.send_bytes(pickle.dumps(answer))


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the launcher serves the rendezvous, as torch's agent does
    }  # fmt: skip


def _run_jobs(world: World, inherited: Any, jobs: list[Job], environment: dict[str, str]) -> None:
    from shardlab.engine import rank

    os.environ.update(environment)
    with rank.process_group(jobs[0], world):
        for job in jobs:
            rank.run(job, world, inherited)


def _what_is_left(job: Job) -> Ran:
    reports = load_reports(job.folder)
    world_size, config = job.config.nproc, job.config
    ledgers = {
        (epoch, rank): ledger.read(summary.ledger_file(job.folder, epoch, rank))
        for epoch in range(config.warmup + config.epochs)
        for rank in range(world_size)
        if summary.ledger_file(job.folder, epoch, rank).exists()  # an earlier run had the epochs before
    }
    return Ran(job, reports, summary.audit_epochs(job, reports, world_size), ledgers)

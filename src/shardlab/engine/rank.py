"""What one rank does: take its place in the world, open the store, open the data path, run the epochs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from shardlab import dataset, plugins
from shardlab.datapath._torch import start_worker
from shardlab.engine import lifeline
from shardlab.engine.batch import computation
from shardlab.engine.epochs import Epochs
from shardlab.engine.job import LIFELINE, Job
from shardlab.engine.loop import compute_on
from shardlab.engine.source import open_store, samples_of
from shardlab.errors import RunFailed, UsageError
from shardlab.plan import Plan
from shardlab.process import die_with_parent, ignore_lost_connections, keep_sockets_in
from shardlab.world import World

SILENCE_S = 1800.0  # of another rank, after which it is given up


def main(run_dir: str, inherited: Any = None) -> None:
    """Entry of a rank that shardlab's own launcher started. Returns only when all went well."""
    folder = Path(run_dir)
    die_with_parent()
    lifeline.follow(folder / LIFELINE)
    lifeline.leave_quietly_on_signals()
    ignore_lost_connections()
    os.dup2(2, 1)  # what a dataset prints must not reach the launcher's stdout
    world = World.from_env()
    try:
        job = Job.load(folder)
        if job.config.start_method == "fork":
            wait_for_the_last_fork(folder, world)
        run(job, world, inherited)
    except BaseException as error:
        lifeline.forget_workers()
        os._exit(lifeline.write_failure(folder, world.rank, error).exit_code)


def wait_for_the_last_fork(folder: Path, world: World) -> None:
    """Return when every rank of this node has been forked: only then may one of them reach for the network.

    The launcher serves the rendezvous in a thread that looks up the address of each rank that connects. A rank
    forked in that moment has the C library's resolver lock taken for ever, and hangs when it connects.
    """
    (folder / f"forked-{world.rank}").touch()
    while len(list(folder.glob("forked-*"))) < world.local_world_size:
        time.sleep(0.005)


def run(job: Job, world: World, inherited: Any = None) -> None:
    """All epochs of one rank, in a process group of all ranks."""
    keep_sockets_in(job.run_dir)
    # torch makes this folder as soon as there is an optimiser, and would leave it in the temporary folder.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(job.folder / "compiled"))
    with process_group(job, world):
        device = _device(job, world)
        path = open_path(job)
        if inherited is None:
            freeze_what_is_not_data(job)
        store = open_store(job, world, inherited)
        loader = path(store, Plan.of(job.config, samples_of(job)), world)
        prepare_workers(loader)
        try:
            if job.train is not None:
                from shardlab.engine import training

                training.run(job, world, store, loader, device)
            else:
                compute = computation(job.config.compute, device)
                _run_epochs(Epochs(job, world, store, loader, device), compute)
        finally:
            close = getattr(loader, "close", None)
            if close is not None:
                close()


@contextmanager
def process_group(job: Job, world: World) -> Iterator[None]:
    """gloo or nccl over all ranks; refuses to go on where the launcher's variables and the group disagree."""
    backend = "gloo" if job.config.device == "cpu" else "cpu:gloo,cuda:nccl"
    started = not dist.is_initialized()
    if started:
        dist.init_process_group(backend, timeout=timedelta(seconds=min(job.timeout_s, SILENCE_S)))
    if (dist.get_rank(), dist.get_world_size()) != (world.rank, world.world_size):
        raise RunFailed(
            f"the process group says rank {dist.get_rank()} of {dist.get_world_size()}, the launcher's "
            f"variables {world.rank} of {world.world_size}: this rank would read the wrong samples"
        )
    try:
        yield
    finally:
        if started and not job.joined:
            dist.destroy_process_group()


def prepare_workers(loader: Any) -> None:
    """Have the workers of a user's own DataLoader end with the rank and give memory back, as ours do."""
    for candidate in (loader, *getattr(loader, "__dict__", {}).values()):
        if isinstance(candidate, DataLoader) and candidate.num_workers and candidate.worker_init_fn is None:
            candidate.worker_init_fn = start_worker


def freeze_what_is_not_data(job: Job) -> None:
    """Import all that the run needs, and take it out of the garbage collector's sight before the data come.

    A full collection writes to every object it visits. In a forked worker that makes some 80 MiB of the
    interpreter's own objects private, sooner or later: it would look like copies of the dataset.
    """
    dataset.import_for(job.spec)
    if job.train is not None:
        plugins.find("framework")[job.train.framework].load()
    gc.collect()
    gc.freeze()


def open_path(job: Job) -> Callable[..., Any]:
    """The data path's ``open``."""
    known = plugins.find("datapath")
    if job.config.sampler in known:
        return known[job.config.sampler].load().open  # type: ignore[no-any-return]
    return plugins.load_reference(job.config.sampler, "--sampler")


def _run_epochs(epochs: Epochs, compute: Callable[[Any], None] | None) -> None:
    """Warm-up, and what is timed; the memory is read in the last one."""
    job = epochs.job
    warmup, total = (1, 2) if job.control else (job.config.warmup, job.config.warmup + job.config.epochs)
    for number in range(total):
        feed = epochs.begin(number, hold=number == total - 1)
        compute_on(feed, compute)
        epochs.end(feed, timed=number >= warmup)


def _device(job: Job, world: World) -> torch.device:
    if job.config.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError("--device cuda needs an accelerator", "cuda", ["auto", "cpu"])
    torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())

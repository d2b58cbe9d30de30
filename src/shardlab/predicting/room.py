"""What this machine has of memory, and what of it the small runs take: those that would not do are refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shardlab.config import RunConfig
from shardlab.dataset import DatasetFacts
from shardlab.errors import UsageError
from shardlab.launch.copies import NOISE_BYTES_PER_PROCESS
from shardlab.measure import cgroup
from shardlab.predicting import sentences
from shardlab.shm._room import CGROUP, PROC, free_bytes

ROOM = 0.7  # of the memory that is available: more is not filled for a prediction
SHM = "/dev/shm"


def built_in_bytes() -> int:
    """Bytes of memory that this machine has, or that its cgroup allows."""
    built_in = os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup.memory_limit().limit_bytes
    return built_in if limit is None else min(limit, built_in)


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUP) -> int | None:
    """Bytes that a job may still take here without swapping; None where the kernel does not say.

    The least of ``MemAvailable`` and, for each cgroup with a limit, that less what is in use and cannot be dropped.
    """
    free = free_bytes(proc, cgroups)  # this counts swap too
    lines = dict(line.split(":", 1) for line in cgroup.text(proc / "meminfo").splitlines() if ":" in line)
    known = [] if free is None else [free]
    if "MemAvailable" in lines:
        known.append(int(lines["MemAvailable"].split()[0]) << 10)
    return min(known, default=None)


def shm_size() -> int | None:
    """Bytes that ``/dev/shm`` may hold here; None where there is none."""
    try:
        info = os.statvfs(SHM)
    except OSError:
        return None
    return info.f_blocks * info.f_frsize


def most_copies(config: RunConfig, *, objects: bool, in_files: bool = False) -> int:
    """Copies of the dataset that a run holds at its fullest moment, at the most.

    A store that is filled has the source beside it. Workers that are not forked are handed arrays in ``/dev/shm``, a
    copy for each rank, and objects one by one; forked workers and ranks make objects their own by touching them.
    """
    if config.store in ("shared", "mmap"):
        return 1 if in_files and config.store == "mmap" else 2
    readers = 1 if config.store == "reader" else config.nproc
    built = 1 if config.store == "inherited" else readers
    if objects:
        own = 0 if config.store != "inherited" else readers
        return built + (readers * config.workers if config.workers else own)
    return built + (readers if config.workers and config.worker_start_method != "fork" else 0)


def refuse_what_is_too_large_here(
    runs: Sequence[RunConfig], facts: DatasetFacts, available: int | None, *, in_files: bool = False
) -> None:
    """Raise UsageError where the copies of the dataset that the small runs hold would fill this machine."""
    if facts.dataset_bytes is None or available is None:
        return
    copies = max(most_copies(run, objects=facts.objects, in_files=in_files) for run in runs)
    if copies * facts.dataset_bytes > ROOM * available:
        raise UsageError(
            f"the small runs hold up to {copies} copies of --dataset, to fit into {ROOM:.0%} of what is available",
            f"{sentences.size(facts.dataset_bytes)} each, with {sentences.size(available)} available",
            cure="name a part of the dataset with --dataset, and its whole size with --dataset-bytes",
        )  # fmt: skip


def refuse_what_overflows_shm(needed: float, free: int | None) -> None:
    """Raise UsageError where what is on its way to and from workers does not fit: they end by a bus error then."""
    if free is not None and needed > free:
        raise UsageError(
            f"what a small run's workers exchange in {SHM} must fit there",
            f"{sentences.size(needed)}, with {sentences.size(free)} free",
            cure=f"a larger {SHM} (docker: --shm-size), fewer --workers or a smaller --batch-size; where the dataset "
            "goes through it, --worker-start-method fork or --store shared",
        )


def refuse_epochs_of_one_step(runs: Sequence[RunConfig], samples: int | None) -> None:
    """Raise UsageError where ranks would be held before their first step: workers are not there yet."""
    if samples is None:
        return
    for run in sorted(runs, key=lambda run: -run.nproc):
        together = run.nproc * run.batch_size
        steps = samples // together if run.tail == "drop" else -(-samples // together)
        if steps < 2:
            raise UsageError(
                "an epoch of each small run must have at least 2 steps",
                f"{steps} with {run.nproc} x --batch-size {run.batch_size} of {samples} samples",
                cure=f"a --batch-size of at most {max(1, samples // (2 * run.nproc))}, or a larger dataset",
            )


def refuse_what_is_lost_in_noise(
    facts: DatasetFacts, processes: int, stand_ins: int, job_bytes: int | None
) -> None:
    """Raise UsageError where the dataset is to be scaled up, and its own cost is not clear of the noise.

    The largest of the small runs has so many ``processes``; its control has so many ``stand_ins`` for samples.
    """
    size = facts.dataset_bytes
    if size is None or job_bytes is None or job_bytes <= size:
        return
    noise = NOISE_BYTES_PER_PROCESS * processes
    instead = size * min(stand_ins, (facts.samples or 0) // 2) // (facts.samples or 1)
    if size - instead <= noise:
        raise UsageError(
            f"a --dataset that --dataset-bytes scales up must be clear of the {sentences.size(noise)} by which "
            f"small runs of {processes} processes stray",
            f"{sentences.size(size)}, and stand-ins of {sentences.size(instead)} in the control",
            cure=f"a larger --dataset, best {sentences.size(10 * noise)} or more: the interval is the narrower",
        )

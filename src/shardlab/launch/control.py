"""The control run: the same command in fresh processes, stand-ins in place of the dataset.

What it uses of memory is what everything but the dataset costs: interpreter, libraries, communication, the
allocator's habits. A baseline taken inside the measured processes is wrong by several copies: imports are
still to come, and prepared loaders keep their workers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardlab.dataset import DatasetFacts, DatasetSpec
from shardlab.engine.job import Control, Job
from shardlab.measure.monitor import MonitorEnd
from shardlab.measure.reading import HoldReading
from shardlab.world import without_rendezvous

VARIABLE = "SHARDLAB_CONTROL"
STEPS_BEFORE_HOLD = 5


@dataclass(frozen=True)
class ControlRequest:
    """What the control run is told, in a file that ``SHARDLAB_CONTROL`` names."""

    out: str
    nproc: int
    spec: DatasetSpec
    facts: DatasetFacts
    control: Control
    parent: int
    argv: list[str]


@dataclass(frozen=True)
class ControlReading:
    """What it measured, ``end`` the monitor's account. ``dataset_bytes`` is the size of one copy of its stand-in."""

    hold: HoldReading | None
    dataset_bytes: int | None
    why: str = ""
    end: MonitorEnd | None = None


NO_CONTROL = ControlReading(None, None, "no control was run (--no-control)")


def requested() -> ControlRequest | None:
    """The request, where this process was started as a control run."""
    path = os.environ.get(VARIABLE)
    return msgspec.json.decode(Path(path).read_bytes(), type=ControlRequest) if path else None


def measure(
    job: Job, nproc: int, argv: list[str], steps_left: int, *, joined: bool, timeout_s: float
) -> ControlReading:
    """Run the control of ``job`` for ``nproc`` ranks of this node and wait for its reading."""
    out = job.folder / "control-out.json"
    request = job.folder / "control.json"
    control = control_of(job, nproc, steps_left)
    request.write_bytes(msgspec.json.encode(
        ControlRequest(str(out), nproc, job.spec, job.facts, control, os.getpid(), flags_of(job, argv))
    ))  # fmt: skip
    env = without_rendezvous(os.environ) | {VARIABLE: str(request)}
    # The flags travel in the request: torchrun would take --nproc and its like for its own.
    module = "shardlab.profile" if job.train is None else "shardlab.train"
    command = [sys.executable, "-m", module]
    if joined:
        command[1:3] = [
            "-m", "torch.distributed.run", "--nproc-per-node", str(nproc), "--rdzv-backend", "c10d",
            "--rdzv-endpoint", "localhost:0", "--log-dir", str(job.folder / "control-agent"),
            "-m", module,
        ]  # fmt: skip
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        said = f"did not end within {timeout_s:.0f} s"
    finally:
        _end(process)
    if out.exists():
        return msgspec.json.decode(out.read_bytes(), type=ControlReading)
    last = last_words(said or "") or f"exit code {process.returncode}"
    return ControlReading(None, None, f"the control run failed: {last}{_collated(job)}")


def last_words(said: str) -> str:
    r"""The line that says why a control ended. Below torchrun it stands above a report of torchrun's own.

    >>> last_words("shardlab: Traceback ...\n  File ...\n\nrank 1 failed: no memory\n")
    'rank 1 failed: no memory'
    >>> last_words("shardlab: rank 0 failed: no memory\nW1130 1 torch/distributed/elastic/m/api.py:9] Sending\n==\n")
    'rank 0 failed: no memory'
    >>> last_words("[rank0]: OSError: no memory\nE1130 1 torch/distributed/elastic/m/api.py:9] failed\n")
    'OSError: no memory'
    """
    before_report = re.split(r"^[EW]\d.*elastic/\S+/api\.py:\d+\] ", said, maxsplit=1, flags=re.MULTILINE)[0]
    last = before_report.strip().rpartition("\n")[2]
    return re.sub(r"^(shardlab|\[rank\d+\]): ", "", last)


def flags_of(job: Job, argv: list[str]) -> list[str]:
    """The flags of the run, with the framework that it came to.

    ``auto`` would come to another in the control of a node with one rank of several. The last of two flags holds.
    """
    return argv if job.train is None else [*argv, "--framework", job.train.framework]


def _collated(job: Job) -> str:
    """What a failed control of a training has to say about how its batches were made."""
    if job.train is None or job.facts.collate is None:
        return ""
    if job.facts.collate:
        return f" (its random samples went through the dataset's own {job.facts.collate})"
    return (
        " (its batches were stacked, as the dataset's own collate_fn cannot be had without the dataset. "
        "Cure: make it a static method, or a function of a module)"
    )


def control_of(job: Job, nproc: int, steps_left: int) -> Control:
    """How many stand-ins the control needs, how long it believes its dataset to be, when it is held.

    Without workers it is as long as the dataset, so that an index list of a sampler is in both runs. With
    workers such a list is used up when the measured run is held, and what counts is what is in flight: the
    control is held with as many batches to come as the measured run had, up to what workers fetch ahead.
    """
    round_samples = nproc * job.config.batch_size
    ahead = job.config.workers * job.config.prefetch_factor + 1
    half = max(nproc, (job.facts.samples or round_samples * 2) // 2)  # the rest has to show in the difference
    # A ring of so many readers is through its slots then, but for some MiB where batches are small.
    before = STEPS_BEFORE_HOLD + 2 * job.config.workers
    rounds = before + (min(steps_left, ahead) if job.config.workers else 1)
    length = rounds * round_samples
    if not job.config.workers and job.facts.samples is not None:
        length = job.facts.samples
    samples = min(length, round_samples, half)
    return Control(samples=samples, length=length, steps=before + 1)


def stand_in_bytes(facts: DatasetFacts, samples: int) -> int | None:
    """Size of ``samples`` stand-ins, in proportion to the dataset's."""
    if facts.dataset_bytes is None or not facts.samples:
        return None
    return facts.dataset_bytes * samples // facts.samples


def answer(request: ControlRequest, reading: ControlReading) -> None:
    """Hand the reading to the run that asked for it."""
    out = Path(request.out)
    partial = out.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(reading))
    partial.rename(out)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        deadline = time.monotonic() + 5
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
        process.wait()
    if process.stderr is not None:
        process.stderr.close()

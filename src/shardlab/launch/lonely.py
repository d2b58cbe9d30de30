"""``accelerate launch`` on a host without an accelerator: notice the one process that was to be several."""

from __future__ import annotations

import os
import re
from pathlib import Path

from shardlab.errors import UsageError

_OURS = re.compile(r"(.*/)?shardlab(\.profile|\.train)?")


def refuse_a_lonely_launch(module: str) -> None:
    """Refuse to run ``module`` alone where ``accelerate launch`` was asked for several processes and started one.

    Without MPI it has no launcher for several processes on a CPU host, and says nothing.
    """
    if "ACCELERATE_USE_CPU" not in os.environ and "ACCELERATE_MIXED_PRECISION" not in os.environ:
        return
    command = _command_of(os.getppid())
    if not any("launch" in word for word in command[:4]):
        return
    asked = processes_asked_for(command)
    if asked is not None and asked > 1:
        raise UsageError(
            f"accelerate launch must start the {asked} processes that it was asked for",
            "one process",
            cure="ACCELERATE_USE_CPU=1 accelerate launch --multi_gpu "
            f"--num_processes {asked} -m {module} ..., or python -m {module} --nproc {asked}",
        )


def processes_asked_for(command: list[str]) -> int | None:
    """The number of processes on an ``accelerate launch`` command line, or in the config file it names.

    >>> processes_asked_for(["accelerate", "launch", "--cpu", "--num_processes", "2", "-m", "train"])
    2
    """
    # What follows the script or module is not for accelerate, and --num-processes is a flag of ours too.
    start = next((place for place, word in enumerate(command) if word.endswith("launch")), -1) + 1
    ours = (place for place, word in enumerate(command) if place >= start and _OURS.fullmatch(word))
    text = "\0".join(command[start : next(ours, len(command))])
    found = re.search(r"--num[_-]processes[\0=](\d+)", text)
    if found:
        return int(found[1])
    config = re.search(r"--config[_-]file[\0=]([^\0]+)", text)
    if config and Path(config[1]).is_file():
        found = re.search(r"^num_processes:\s*(\d+)", Path(config[1]).read_text(), re.MULTILINE)
        return int(found[1]) if found else None
    return None


def _command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []

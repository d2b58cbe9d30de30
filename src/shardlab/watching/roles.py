"""What a process of a job is, and how it came to be: pure functions of what was read of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from shardlab.measure import tree
from shardlab.measure.procfs import Stat

WORKER_NAME = "pt_data_worker"
"""What torch names the main thread of a DataLoader worker."""

STARTED_BY_MULTIPROCESSING = ("fork", "forkserver", "spawn")
_AGENT = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|srun|mpirun|mpiexec")
_SPAWNED = ("multiprocessing.spawn", "--multiprocessing-fork")
RANK = re.compile(r"(?:^|\0)RANK=(\d+)(?:\0|$)")


@dataclass
class Known:
    """What is read of a program once; ``rank`` is what it says, ``number`` that of a worker among its rank's."""

    stat: Stat
    cmdline: str
    rank: int | None
    number: int | None = None
    is_worker: bool = False


def start_methods(living: dict[int, Stat], known: dict[int, Known]) -> dict[int, str | None]:
    """How each process came to be, parents first: a copy has its parent's command line and address of the stack."""
    methods: dict[int, str | None] = {}
    for pid, stat in living.items():
        own, parent = known[pid].cmdline, known.get(stat.ppid)
        if parent and own and own == parent.cmdline and known[pid].stat.start_stack == parent.stat.start_stack:
            of_server = tree.servant(own) == "forkserver" and methods[stat.ppid] not in ("fork", "forkserver")
            methods[pid] = "forkserver" if of_server else "fork"
        elif any(word in own for word in _SPAWNED):
            methods[pid] = "spawn"
        else:
            methods[pid] = "program" if own else None
    return methods


def servants(
    living: dict[int, Stat], known: dict[int, Known], methods: dict[int, str | None]
) -> dict[int, str]:
    """What each servant serves as. Copies of a forkserver work for the job, copies of another servant serve, too."""
    found: dict[int, str] = {}
    for pid, stat in living.items():
        if methods[pid] not in ("fork", "forkserver"):
            servant = tree.servant(known[pid].cmdline)
        else:
            servant = found.get(stat.ppid)
            servant = None if servant == "forkserver" else servant
        if servant:
            found[pid] = servant
    return found


def said_ranks(living: dict[int, Stat], known: dict[int, Known], servants: dict[int, str]) -> dict[int, int]:
    """Pid to rank, of those that say it and did not inherit it."""
    said = {pid: rank for pid in living if (rank := known[pid].rank) is not None and pid not in servants}
    return {pid: r for pid, r in said.items() if all(said.get(a) != r for a in ancestors(pid, living))}


def likely_ranks(
    living: dict[int, Stat],
    known: dict[int, Known],
    methods: dict[int, str | None],
    servants: dict[int, str],
    before: dict[int, int],
) -> dict[int, int]:
    """Pid to rank where none says it; who had one ``before`` keeps it."""
    started = [
        pid for pid in living
        if methods[pid] in STARTED_BY_MULTIPROCESSING and pid not in servants and not known[pid].is_worker
    ]  # fmt: skip
    highest = [pid for pid in started if not any(a in started for a in ancestors(pid, living))]
    alike = len(highest) > 1 or any(a in highest for pid in living for a in ancestors(pid, living))
    if highest and alike:
        fresh = sorted((p for p in highest if p not in before), key=lambda p: (living[p].start_ticks, p))
        kept = {pid: rank for pid, rank in before.items() if pid in highest}
        free = (rank for rank in count() if rank not in kept.values())
        return kept | dict(zip(fresh, free, strict=False))
    scripts = [pid for pid in living if _is_python(known[pid].cmdline) and pid not in servants]
    return dict.fromkeys(scripts[:1], 0)  # of a pipeline of scripts, the first


def role(
    pid: int,
    rank: int | None,
    ranks: dict[int, int],
    above: set[int],
    methods: dict[int, str | None],
    known: dict[int, Known],
) -> str:
    if pid in ranks:
        return "rank"
    if pid in above:
        return "agent" if _AGENT.search(known[pid].cmdline) else "launcher"
    of_rank = rank is not None and methods[pid] in STARTED_BY_MULTIPROCESSING
    return "worker" if known[pid].is_worker or of_rank else "other"


def ancestors(pid: int, living: dict[int, Stat]) -> Iterable[int]:
    parent = living[pid].ppid
    while parent in living:
        yield parent
        parent = living[parent].ppid


def _is_python(cmdline: str) -> bool:
    """Whether the program itself is; that of ``timeout 30 python train.py`` is not."""
    return cmdline.partition(" ")[0].rpartition("/")[2].startswith("python")


def name(cmdline: str) -> str:
    """The program of a command line, without interpreter, folders and flags."""
    words = cmdline.split()
    names = [word.rpartition("/")[2] for word in words if not word.startswith("-")]
    if len(names) > 1 and names[0].startswith("python"):
        return names[1][:40]
    return names[0][:40] if names else ""

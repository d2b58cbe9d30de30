"""A ring of real processes without a process group: the test leads, forked processes are the other ranks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from shardlab.process import die_with_parent
from shardlab.ring.codec import encode
from shardlab.ring.crew import Crew
from shardlab.ring.loader import Epoch, RingLoader
from shardlab.ring.memory import Ring, Shape, create
from shardlab.ring.reader import serve
from shardlab.shm import Handle

ENDS_WITHIN_S = 5.0
"""What is promised of all ranks and readers once one of them has failed or died."""
FORK = multiprocessing.get_context("fork")


@dataclass
class Numbers:
    """Rank r gets, in step s of epoch e, ``size`` numbers that are all ``1000 * e + 10 * s + r``.

    Reader ``slow`` takes ``pause_s`` for each part; ``trouble(step, rank)`` may do anything before one.
    """

    slow: int | None = None
    pause_s: float = 0.0
    size: int = 1000
    trouble: Callable[[int, int], Any] | None = None
    epoch: int = 0
    reader: int = 0
    is_quick: bool = False

    def begin(self, epoch: int, consumed: int, reader: int) -> None:
        self.epoch, self.reader = epoch, reader

    def fill(self, step: int, rank: int, part: Any) -> int:
        if self.slow == self.reader:
            time.sleep(self.pause_s)
        if self.trouble is not None:
            self.trouble(step, rank)
        encode(torch.full((self.size,), value_of(self.epoch, step, rank)), part)
        return 1


def value_of(epoch: int, step: int, rank: int) -> int:
    return 1000 * epoch + 10 * step + rank


def values(batches: Any) -> list[int]:
    """The number of each batch; fails where a batch is not of one number."""
    found = []
    for batch in batches:
        assert batch.unique().numel() == 1
        found.append(int(batch[0]))
        del batch
    return found


def due(epoch: int, rank: int, steps: int, first: int = 0) -> list[int]:
    return [value_of(epoch, step, rank) for step in range(first, steps)]


@dataclass
class Node:
    """A ring and its ranks. ``leader`` is rank 0, of this process unless it is made elsewhere."""

    handle: Handle
    shape: Shape
    leader: RingLoader
    ranks: list[Any] = field(default_factory=list)

    @property
    def readers(self) -> list[Any]:
        assert self.leader.crew is not None
        return self.leader.crew.processes

    def follow(self, rank: int, target: Callable[[RingLoader, Connection], Any]) -> Connection:
        """Run ``target`` as a rank in a process of its own; the end of its pipe. What it returns is sent."""
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=_follow, args=(self.handle, self.shape, rank, target, theirs))
        process.start()
        theirs.close()
        self.ranks.append(process)
        return ours


@contextmanager
def node(
    source: Any,
    *,
    ranks: int = 1,
    readers: int = 1,
    slots: int = 4,
    method: str = "fork",
    part: int = 1 << 16,
) -> Iterator[Node]:
    """A ring that runs until the end of the block, after which none of its processes may be left."""
    handle, shape, leader = lead(source, ranks, readers, slots, method, part)
    made = Node(handle, shape, leader)
    try:
        yield made
    finally:
        leader.close()
        for process in made.ranks:
            process.join(ENDS_WITHIN_S)
            process.kill()
            process.join()


def lead(
    source: Any, ranks: int, readers: int, slots: int, method: str = "fork", part: int = 1 << 16
) -> tuple[Handle, Shape, RingLoader]:
    shape = Shape(ranks, readers, slots, part)
    handle = create(shape)
    ring = Ring(handle, shape)
    ring.reset()
    context: Any = multiprocessing.get_context(method)
    processes = [
        context.Process(target=serve, args=(handle, shape, k, source), name=f"reader {k}", daemon=True)
        for k in range(readers)
    ]
    for process in processes:
        process.start()
    return handle, shape, RingLoader(ring, 0, Crew(ring, handle, processes))


def _follow(handle: Handle, shape: Shape, rank: int, target: Any, pipe: Connection) -> None:
    die_with_parent()
    try:
        answer = target(RingLoader(Ring(handle, shape), rank, None), pipe)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    pipe.send(answer)


def epoch(loader: RingLoader, number: int, steps: int) -> Epoch:
    """An epoch of a number of steps, begun."""
    loader.prepare(number, 0, steps, steps)
    return iter(loader)


def read_epochs(*steps: int) -> Callable[[RingLoader, Connection], Any]:
    """A rank that reads whole epochs: the numbers of each."""
    return lambda loader, _pipe: [values(epoch(loader, number, n)) for number, n in enumerate(steps)]


def answer(pipe: Connection, within_s: float = 30.0) -> Any:
    assert pipe.poll(within_s), f"no answer within {within_s:g} s"
    return pipe.recv()


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)
    return value


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

"""A reader process: fills the slots whose turn is its own, in the order of the epoch."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Protocol

import torch

from shardlab import shm
from shardlab.process import die_with_starter
from shardlab.ring.buffers import Buffers
from shardlab.ring.memory import Head, Ring, Shape, Word

PATIENCE_S = 0.2  # how often a waiting reader looks whether it is to stop
_OURS = str(Path(__file__).parents[1])


class Source(Protocol):
    """Where batches come from; goes to the reader process as a whole."""

    @property
    def is_quick(self) -> bool:
        """Whether filling a part takes microseconds, so that parts may wait for the next ones to be handed over."""

    def begin(self, epoch: int, consumed: int, reader: int) -> None:
        """An epoch is about to be read here, but for the ``consumed`` samples at its front."""

    def fill(self, step: int, rank: int, part: Any) -> int:
        """Write a local rank's part of a step's global batch; how many samples it is, -1 past the end."""


def serve(handle: shm.Handle, shape: Shape, reader: int, source: Source) -> None:
    """The reader process: epoch after epoch, until its parent ends or a failure stops the ring."""
    die_with_starter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # a pool of threads that a forked process has inherited would never answer
    ring = _attached(handle, shape)
    buffers = Buffers(ring, reader)
    try:
        while ring.control[Word.ERROR] == 0:
            if ring.semaphores.wait(ring.start(reader), PATIENCE_S) and not ring.control[Word.ERROR]:
                read_epoch(ring, reader, source, buffers)
                ring.semaphores.post(ring.idle(reader))
    except BaseException as error:
        ring.fail(f"reader {reader} of the ring failed: {type(error).__name__}: {error}{_where(error)}")
        raise SystemExit(1) from None


def _attached(handle: shm.Handle, shape: Shape) -> Ring:
    """The ring; ends without a word where who made it has ended, which is who has something to say."""
    try:
        return Ring(handle, shape)
    except Exception:
        starter = multiprocessing.parent_process()
        if starter is not None and not starter.is_alive():
            raise SystemExit(1) from None
        raise


def read_epoch(ring: Ring, reader: int, source: Source, buffers: Buffers) -> None:
    """Fill this reader's turns until the epoch is through or the ring is told to stop."""
    control, shape = ring.control, ring.shape
    base, steps = control[Word.BASE], control[Word.STEPS]
    source.begin(control[Word.EPOCH], control[Word.CONSUMED], reader)
    step = reader  # the base is a multiple of the readers
    outbox = Outbox(ring, is_quick=source.is_quick)
    try:
        while steps < 0 or step < steps:
            if not buffers.wait_for(base + step, shape.ranks, outbox.hand_over, PATIENCE_S):
                return
            if not _fill(ring, base + step, step, source, buffers, outbox) and shape.readers == 1:
                return
            step += shape.readers  # at the end of its part a reader says so in each turn: others may have more
    finally:
        outbox.hand_over()


class Outbox:
    """Parts that are filled and not yet handed over.

    Telling a rank that sleeps costs as much as gathering a small batch, and it then wakes for a single one.
    So parts of a quick source are handed over some at once: when the last time was ``QUICK_S`` ago, and always
    before the reader waits. Those of any other go at once, as nobody knows how long the next one takes.
    """

    QUICK_S = 5e-4

    def __init__(self, ring: Ring, *, is_quick: bool) -> None:
        self._ring = ring
        self._delay_s = self.QUICK_S if is_quick else 0.0
        self._filled: list[int] = []
        self._handed_over = 0.0

    def put(self, semaphore: int) -> None:
        """A part is filled; its rank waits for this semaphore."""
        self._filled.append(semaphore)
        if time.perf_counter() - self._handed_over > self._delay_s:
            self.hand_over()

    def hand_over(self) -> None:
        """Tell the ranks of all of them, in order."""
        for semaphore in self._filled:
            self._ring.semaphores.post(semaphore)
        self._filled.clear()
        self._handed_over = time.perf_counter()


def _fill(ring: Ring, turn: int, step: int, source: Source, buffers: Buffers, outbox: Outbox) -> bool:
    """Fill all parts of a turn; False where that was the end of the stream."""
    more, slot = True, turn % ring.shape.slots
    for rank in range(ring.shape.ranks):
        head, buffer = ring.head(slot, rank), buffers.take(rank)
        samples = source.fill(step, rank, ring.buffers[buffer])
        more = more and samples >= 0
        head[Head.SAMPLES], head[Head.END] = max(samples, 0), samples < 0
        head[Head.BUFFER], head[Head.TURN] = buffer, turn
        outbox.put(ring.filled(slot, rank))
    return more


def _where(error: BaseException) -> str:
    """The innermost frame that is not a library's: where a user would look."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "site-packages" not in frame.filename and not frame.filename.startswith((_OURS, sys.base_prefix)):
            return f" ({frame.filename}:{frame.lineno} in {frame.name})"
    return ""

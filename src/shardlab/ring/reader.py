"""A reader process: fills the slots whose turn is its own, in the order of the epoch."""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Protocol

import torch

from shardlab import shm
from shardlab.process import die_with_starter
from shardlab.ring.memory import Part, Ring, Shape, Word

PATIENCE_S = 0.2  # how often a waiting reader looks whether it is to stop
_OURS = str(Path(__file__).parents[1])


class Source(Protocol):
    """Where batches come from; goes to the reader process as a whole."""

    def begin(self, epoch: int, consumed: int, reader: int) -> None:
        """An epoch is about to be read here, but for the ``consumed`` samples at its front."""

    def fill(self, step: int, rank: int, part: Any) -> int:
        """Write a local rank's part of a step's global batch; how many samples it is, -1 past the end."""


def serve(handle: shm.Handle, shape: Shape, reader: int, source: Source) -> None:
    """The reader process: epoch after epoch, until its parent ends or a failure stops the ring."""
    die_with_starter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # a pool of threads that a forked process has inherited would never answer
    ring = Ring(handle, shape)
    try:
        while ring.control[Word.ERROR] == 0:
            if ring.semaphores.wait(ring.start(reader), PATIENCE_S) and not ring.control[Word.ERROR]:
                read_epoch(ring, reader, source)
                ring.semaphores.post(ring.idle(reader))
    except BaseException as error:
        ring.fail(f"reader {reader} of the ring failed: {type(error).__name__}: {error}{_where(error)}")
        raise SystemExit(1) from None


def read_epoch(ring: Ring, reader: int, source: Source) -> None:
    """Fill this reader's turns until the epoch is through or the ring is told to stop."""
    control, shape = ring.control, ring.shape
    base, steps = int(control[Word.BASE]), int(control[Word.STEPS])
    source.begin(int(control[Word.EPOCH]), int(control[Word.CONSUMED]), reader)
    step = (reader - base) % shape.readers  # the first step whose turn is this reader's
    while steps < 0 or step < steps:
        slot = (base + step) % shape.slots
        if not _is_free(ring, slot) or not _fill(ring, slot, base + step, step, source):
            return
        step += shape.readers


def _is_free(ring: Ring, slot: int) -> bool:
    """Wait until every rank has let go of the slot; False, and nothing taken, where the ring is to stop."""
    taken = 0
    while taken < ring.shape.ranks:
        taken += ring.semaphores.wait(ring.free(slot), PATIENCE_S)
        if ring.is_stopping:
            for _ in range(taken):
                ring.semaphores.post(ring.free(slot))
            return False
    return True


def _fill(ring: Ring, slot: int, turn: int, step: int, source: Source) -> bool:
    """Write all parts of a slot and hand them over; False where that was the end of the stream."""
    more = True
    for rank in range(ring.shape.ranks):
        part, head = ring.part(slot, rank), ring.head(slot, rank)
        samples = source.fill(step, rank, part)
        more = more and samples >= 0
        head[Part.SAMPLES], head[Part.END], head[Part.TURN] = max(samples, 0), samples < 0, turn
        ring.semaphores.post(ring.filled(slot, rank))
    return more


def _where(error: BaseException) -> str:
    """The innermost frame that is not a library's: where a user would look."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "site-packages" not in frame.filename and not frame.filename.startswith((_OURS, sys.base_prefix)):
            return f" ({frame.filename}:{frame.lineno} in {frame.name})"
    return ""

"""A rank's end of a ring: its part of each global batch, as views, in order."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from shardlab.errors import RunFailed
from shardlab.ring.codec import decode
from shardlab.ring.crew import GRACE_S, Crew
from shardlab.ring.held import Held
from shardlab.ring.members import Member, State, enter, missing
from shardlab.ring.memory import Head, Ring, Word

PATIENCE_S = 0.5  # how often a waiting rank looks whether it waits in vain


class RingLoader:
    """Iterable, once per epoch, on every rank of the node; the one with the ``crew``, local rank 0, leads.

    A batch is a view of its buffer, which returns to the reader when the last view of it has died, wherever that
    view went: a list, autograd's saved tensors, a batch fetched ahead. A rank that holds as many as are its own
    gets an error that names the oldest one's step; bytes under a view never change. (A forked child that goes on
    with its parent's batch has to keep a copy: the parent does not learn of it.)
    """

    def __init__(self, ring: Ring, rank: int, crew: Crew | None) -> None:
        self.ring, self.rank, self.crew = ring, rank, crew
        self.epoch = self.consumed = 0
        self.steps = self.mine = self.step = 0
        self._turns = [0] * ring.shape.slots  # the last turn taken from each slot
        self._held: dict[int, Held] = {}  # by buffer, the oldest first
        self._base = self._epochs = 0
        self._words = ring.members[rank]
        enter(ring, rank)
        self._pid = os.getpid()
        self._leave = weakref.finalize(self, _leave, ring, rank, crew, self._held, self._pid)

    def __len__(self) -> int:
        if self.steps < 0:
            raise TypeError("a stream has no length")
        return self.steps

    def __iter__(self) -> Epoch:
        self._refuse_if_closed()
        self._words[Member.STATE] = State.MEETING
        self._meet(self._stop_readers)
        self._words[Member.STATE] = State.BETWEEN
        self._drain()
        self._meet(self._start_readers)
        self._base = self.ring.control[Word.BASE]
        self.step = 0
        self._words[Member.STATE] = State.READING
        self._epochs += 1
        return Epoch(self, self._epochs)

    def next_of(self, number: int) -> Any:
        """The next batch, for the iterator that was made as the ``number``-th."""
        if number != self._epochs:
            raise RunFailed("another epoch of this ring has begun since: only its latest iterator goes on")
        if self._words[Member.STATE] == State.BETWEEN or 0 <= self.mine <= self.step:
            return self._end()
        self._refuse_if_closed()
        for _ in range(self.ring.shape.readers):
            batch = self._next_turn()
            if batch is not None:
                return batch
        # A reader that had nothing for this rank once has nothing more in this epoch, and now that is all of them.
        return self._end()

    def _next_turn(self) -> Any:
        """The batch of the next turn; None where its reader has no more for this rank."""
        turn = self._base + self.step
        self.step += 1
        slot = turn % self.ring.shape.slots
        self._refuse_to_hold_more(turn % self.ring.shape.readers)
        self._wait(self.ring.filled(slot, self.rank), turn)
        head = self.ring.head(slot, self.rank)
        if head[Head.TURN] != turn:
            raise RunFailed(f"ring slot {slot} holds another turn where {turn} was due: this is a bug")
        buffer, is_batch = head[Head.BUFFER], not head[Head.END] and head[Head.SAMPLES] > 0
        self._turns[slot] = self._words[Member.TAKEN] = turn  # a reader may write that head again
        if not is_batch:
            self.ring.semaphores.post(self.ring.free(buffer))
            return None
        part = self.ring.buffers[buffer][:]  # an object of its own, which only views of it keep
        self._held[buffer] = Held(part, self.step - 1, turn, partial(self._let_go, buffer))
        return decode(part)

    def prepare(self, epoch: int, consumed: int, steps: int, mine: int) -> None:
        """What comes next: ``steps`` steps of an epoch, -1 to the end of a stream, ``mine`` for this rank."""
        self.epoch, self.consumed, self.steps, self.mine = epoch, consumed, steps, mine
        self.step = 0

    def close(self) -> None:
        """Leave, and end the readers where this rank leads. Views stay valid as long as they live."""
        self._leave()

    def _end(self) -> Any:
        if self._words[Member.STATE] == State.READING:
            self._words[Member.STATE] = State.BETWEEN
        raise StopIteration

    def _meet(self, lead: Callable[[], None]) -> None:
        """Wait for all ranks of the node; the leader does its part while the others are held."""
        semaphores, ring = self.ring.semaphores, self.ring
        if self.crew is not None:
            for _ in range(ring.shape.ranks - 1):
                self._wait(ring.arrive)
            lead()
            for rank in range(ring.shape.ranks):
                if rank != self.rank:
                    semaphores.post(ring.go(rank))
        else:
            semaphores.post(ring.arrive)
            self._wait(ring.go(self.rank))

    def _stop_readers(self) -> None:
        assert self.crew is not None
        if not self.crew.stop():
            self.ring.raise_failure()

    def _start_readers(self) -> None:
        assert self.crew is not None
        control, shape = self.ring.control, self.ring.shape
        latest = max(self.ring.head(slot, self.rank)[Head.TURN] for slot in range(shape.slots))
        # Reader 0 begins, with a turn that nobody has had.
        control[Word.BASE] = (latest // shape.readers + 1) * shape.readers
        control[Word.EPOCH], control[Word.CONSUMED] = self.epoch, self.consumed
        control[Word.STEPS] = self.steps
        self.crew.begin()

    def _drain(self) -> None:
        """Let go of what was filled for this rank and never asked for: the epoch before was left early."""
        taken = self._words[Member.TAKEN]
        for slot in range(self.ring.shape.slots):
            head = self.ring.head(slot, self.rank)
            if head[Head.TURN] > self._turns[slot]:
                self._wait(self.ring.filled(slot, self.rank))
                self._turns[slot] = head[Head.TURN]
                taken = max(taken, head[Head.TURN])
                self.ring.semaphores.post(self.ring.free(head[Head.BUFFER]))
        self._words[Member.TAKEN] = taken

    def _wait(self, semaphore: int, turn: int | None = None) -> None:
        ring = self.ring
        while not ring.semaphores.wait(semaphore, PATIENCE_S):
            ring.raise_failure()
            closed = bool(ring.control[Word.CLOSED])
            if closed and ring.semaphores.wait(semaphore, 0):
                return
            cause = "local rank 0 closed the ring while others still read" if closed else ""
            cause = cause or missing(ring, self.rank, turn)
            if cause:
                ring.fail(cause)
        ring.raise_failure()

    def _refuse_if_closed(self) -> None:
        if not self._leave.alive:
            raise RunFailed("this ring is closed: its readers have ended")

    def _refuse_to_hold_more(self, reader: int) -> None:
        """Fail the ring where this rank keeps its share of a reader's buffers: it would wait for itself."""
        share = self.ring.shape.slots // self.ring.shape.readers
        if len(self._held) < share or len(self._held_of(reader)) < share:
            return
        gc.collect()  # a batch in a cycle of references is held by nobody
        held = self._held_of(reader)
        if len(held) >= share:
            self.ring.fail(
                f"rank {self.rank} of the node, step {self.step - 1}: the batch of step {held[0].step} is still "
                f"held, one of {len(self._held)}, and the ring has only {self.ring.shape.slots} slots. "
                "Cure: keep copies (tensor.clone()), or shardlab.loader(..., held=...) with more"
            )
            self.ring.raise_failure()

    def _held_of(self, reader: int) -> list[Held]:
        """The batches in a reader's buffers that are alive, the oldest first."""
        own = self.ring.shape.buffers_of(reader)
        return [held for buffer, held in list(self._held.items()) if buffer in own]

    def _let_go(self, buffer: int) -> None:
        if os.getpid() != self._pid:
            return  # a forked child's copy of the batch has died; the rank has its own still
        self._held.pop(buffer, None)
        self.ring.semaphores.post(self.ring.free(buffer))


class Epoch:
    """The batches of one epoch."""

    def __init__(self, loader: RingLoader, number: int) -> None:
        self._loader, self._number = loader, number

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        return self._loader.next_of(self._number)


def _leave(ring: Ring, rank: int, crew: Crew | None, held: dict[int, Held], pid: int) -> None:
    """This rank takes part no more: it closed its loader, dropped it, or is about to end."""
    if os.getpid() != pid:
        return
    words = ring.members[rank]
    early = words[Member.STATE] == State.READING
    error = getattr(sys, "last_value", None)
    if early and error is not None:
        ring.fail(f"rank {rank} of the node failed: {type(error).__name__}: {error}")
    if held:  # buffers that it may never let go of
        words[Member.TAKEN] = min(each.turn for each in list(held.values())) - 1
    words[Member.STATE] = State.LEFT
    if crew is not None:
        # Others may still wait for their parts of a last batch that this rank has had.
        grace = GRACE_S if ring.shape.ranks > 1 else 0.0
        crew.end(grace if early else None)

"""A rank's end of a ring: its part of each global batch, as views, in order."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from numpy.typing import NDArray

from shardlab.errors import RunFailed
from shardlab.ring.codec import decode
from shardlab.ring.memory import Part, Ring, Word

PATIENCE_S = 0.5  # how often a waiting rank looks whether a reader failed or died


class RingLoader:
    """Iterable once per epoch on every rank of the node; local rank 0 (``processes``) leads.

    A batch is a view of its slot. The slot returns to the readers when the last view of it has died, wherever
    that view went: a list, autograd's saved tensors, a batch fetched ahead. A rank that comes round to a slot
    it still holds gets an error that names the step; bytes under a view never change.
    """

    def __init__(self, ring: Ring, rank: int, processes: list[BaseProcess]) -> None:
        self.ring, self.rank, self.processes = ring, rank, processes
        self.epoch = self.consumed = 0
        self.steps = self.mine = self.step = 0
        self._turns = [0] * ring.shape.slots  # the last turn taken from each slot
        self._held: dict[int, _Held] = {}
        self._base = 0
        self._running = False

    @property
    def leads(self) -> bool:
        """Whether this rank starts and stops the readers."""
        return bool(self.processes)

    def __len__(self) -> int:
        if self.steps < 0:
            raise TypeError("a stream has no length")
        return self.steps

    def __iter__(self) -> RingLoader:
        self._meet(self._stop_readers)
        self._drain()
        self._meet(self._start_readers)
        self._base = int(self.ring.control[Word.BASE])
        self.step = 0
        return self

    def __next__(self) -> Any:
        if 0 <= self.mine <= self.step:
            raise StopIteration
        turn = self._base + self.step
        slot = turn % self.ring.shape.slots
        self._refuse_a_held_slot(slot)
        self._wait(self.ring.filled(slot, self.rank))
        self._turns[slot] = turn
        head = self.ring.head(slot, self.rank)
        if int(head[Part.TURN]) != turn:
            raise RunFailed(
                f"ring slot {slot} holds turn {head[Part.TURN]} where {turn} was due: this is a bug"
            )
        if head[Part.END]:
            self.ring.semaphores.post(self.ring.free(slot))
            raise StopIteration
        held = _Held(self.step, lambda: self._let_go(slot))
        batch = decode(self.ring.part(slot, self.rank), held.watch)
        self._held[slot] = held
        held.complete()
        self.step += 1
        return batch

    def prepare(self, epoch: int, consumed: int, steps: int, mine: int) -> None:
        """What comes next: ``steps`` steps of an epoch, -1 to the end of a stream, ``mine`` for this rank."""
        self.epoch, self.consumed, self.steps, self.mine = epoch, consumed, steps, mine
        self.step = 0

    def close(self) -> None:
        """End the readers. Views stay valid as long as they live."""
        if self.leads:
            self._stop_readers()
            for process in self.processes:
                process.terminate()
            for process in self.processes:
                process.join(5)
            self.processes = []

    def _meet(self, lead: Callable[[], None]) -> None:
        """Wait for all ranks of the node; the leader does its part while the others are held."""
        semaphores, ring = self.ring.semaphores, self.ring
        if self.leads:
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
        if not self._running:
            return
        # The base stays: a rank that was let go may read it only now, when the leader closes already.
        self.ring.control[Word.STOP] = 1
        for reader in range(self.ring.shape.readers):
            self._wait(self.ring.idle(reader))
        self._running = False

    def _start_readers(self) -> None:
        control, slots = self.ring.control, self.ring.shape.slots
        latest = max(int(self.ring.head(slot, self.rank)[Part.TURN]) for slot in range(slots))
        control[Word.BASE] = (latest // slots + 1) * slots
        control[Word.EPOCH], control[Word.CONSUMED] = self.epoch, self.consumed
        control[Word.STEPS] = self.steps
        control[Word.STOP] = 0
        self._running = True
        for reader in range(self.ring.shape.readers):
            self.ring.semaphores.post(self.ring.start(reader))

    def _drain(self) -> None:
        """Let go of what was filled for this rank and never asked for: the epoch before was left early."""
        for slot in range(self.ring.shape.slots):
            turn = int(self.ring.head(slot, self.rank)[Part.TURN])
            if turn > self._turns[slot]:
                self._wait(self.ring.filled(slot, self.rank))
                self._turns[slot] = turn
                self.ring.semaphores.post(self.ring.free(slot))

    def _wait(self, semaphore: int) -> None:
        while not self.ring.semaphores.wait(semaphore, PATIENCE_S):
            self.ring.raise_failure()
            for process in self.processes:
                if not process.is_alive():
                    self.ring.fail(
                        f"a reader of the ring died (exit code {process.exitcode}) at step {self.step}"
                    )
        self.ring.raise_failure()

    def _refuse_a_held_slot(self, slot: int) -> None:
        held = self._held.get(slot)
        if held is not None:
            raise RunFailed(
                f"step {self.step}: the batch of step {held.step} is still held, and the ring has only "
                f"{self.ring.shape.slots} slots. Cure: keep copies (tensor.clone()), or give the ring more slots"
            )

    def _let_go(self, slot: int) -> None:
        self._held.pop(slot, None)
        self.ring.semaphores.post(self.ring.free(slot))


class _Held:
    """Counts the living views of one batch, and says when there are none."""

    def __init__(self, step: int, let_go: Callable[[], None]) -> None:
        self.step = step
        self._let_go = let_go
        self._living = 1  # one for the time in which views are still being made
        self._lock = threading.RLock()  # a view may die in any thread, or inside another's death
        self._references: list[weakref.ref[NDArray[Any]]] = []

    def watch(self, view: NDArray[Any]) -> None:
        """Count this view until it dies."""
        with self._lock:
            self._living += 1
        self._references.append(weakref.ref(view, self._died))

    def complete(self) -> None:
        """All views are made."""
        self._died(None)

    def _died(self, _reference: object) -> None:
        with self._lock:
            self._living -= 1
            last = self._living == 0
        if last:
            self._references.clear()
            self._let_go()

"""The memory of a ring, and who may touch which part of it when.

One memory file, mapped shared by the readers and ranks of a node::

    control | error text | semaphores | slot 0: rank 0, rank 1, ... | slot 1: ... | ...

Turn ``t`` goes through slot ``t % slots``. A reader may write a slot when every rank has let go of what was in
it (``free`` was posted once for each rank); a rank may read its part when the reader is through (``filled``).
Readers take turns, ``t % readers``, and ``slots`` is a multiple of ``readers``: a slot has one writer for ever,
so the order is the same however many read. A rank's part is its own: no other rank looks at it.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from shardlab.errors import RunFailed
from shardlab.wake import STRIDE, Semaphores

CONTROL_WORDS = 64
ERROR_BYTES = 8192
PAGE = mmap.PAGESIZE
PART_WORDS = (
    8  # a part begins with its turn, its samples, the size of its description, and whether it is the end
)


class Word(IntEnum):
    """Places in the control words."""

    BASE = 0  # turn of the epoch's step 0
    EPOCH = 1
    CONSUMED = 2  # samples of the epoch that were delivered before, where it is resumed
    STEPS = 3  # steps of the epoch; -1 until the end of the stream
    STOP = 4  # readers are to stop
    ERROR = 5  # bytes of error text; 0 for none


class Part(IntEnum):
    """Places in the words at the head of a rank's part."""

    TURN = 0
    SAMPLES = 1
    DESCRIPTION = 2
    END = 3


@dataclass(frozen=True)
class Shape:
    """How large a ring is. ``part_bytes`` is what one rank's part of a slot holds, its head included."""

    ranks: int
    readers: int
    slots: int
    part_bytes: int

    @property
    def semaphores(self) -> int:
        """filled: slots x ranks; free: slots; start, idle: readers; arrive: 1; go: ranks."""
        return self.slots * self.ranks + self.slots + 2 * self.readers + 1 + self.ranks

    @property
    def slots_at(self) -> int:
        """Where slot 0 begins, on a page of its own."""
        head = 8 * CONTROL_WORDS + ERROR_BYTES + STRIDE * self.semaphores
        return -(-head // PAGE) * PAGE

    @property
    def nbytes(self) -> int:
        """Of the whole file; pages that nobody writes take no memory."""
        return self.slots_at + self.slots * self.ranks * self.part_bytes


def slots_for(readers: int, held: int) -> int:
    """Enough that each reader fills one while ``held`` are held and one is handed over; a multiple of readers."""
    return -(-(readers + held + 1) // readers) * readers


class Ring:
    """One process's map of a ring."""

    def __init__(self, fd: int, shape: Shape) -> None:
        self.shape = shape
        self._map = mmap.mmap(fd, shape.nbytes)  # shared: what one writes all see
        raw: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.control: NDArray[np.int64] = raw[: 8 * CONTROL_WORDS].view(np.int64)
        after_control = 8 * CONTROL_WORDS
        self._error = raw[after_control : after_control + ERROR_BYTES]
        at = after_control + ERROR_BYTES
        self.semaphores = Semaphores(raw[at : at + STRIDE * shape.semaphores], shape.semaphores)
        self._slots = raw[shape.slots_at :].reshape(shape.slots, shape.ranks, shape.part_bytes)

    def reset(self) -> None:
        """All slots free, nothing filled; by the one process that made the ring."""
        self.semaphores.reset({self.free(slot): self.shape.ranks for slot in range(self.shape.slots)})

    def filled(self, slot: int, rank: int) -> int:
        """Semaphore: a reader is through with this rank's part."""
        return slot * self.shape.ranks + rank

    def free(self, slot: int) -> int:
        """Semaphore: one more rank has let go of the slot."""
        return self.shape.slots * self.shape.ranks + slot

    def start(self, reader: int) -> int:
        """Semaphore: an epoch begins."""
        return self.shape.slots * (self.shape.ranks + 1) + reader

    def idle(self, reader: int) -> int:
        """Semaphore: the reader has stopped."""
        return self.start(0) + self.shape.readers + reader

    @property
    def arrive(self) -> int:
        """Semaphore: a rank is at the barrier."""
        return self.start(0) + 2 * self.shape.readers

    def go(self, rank: int) -> int:
        """Semaphore: this rank may pass the barrier."""
        return self.arrive + 1 + rank

    def part(self, slot: int, rank: int) -> NDArray[np.uint8]:
        """A rank's part of a slot, head included: shape (part_bytes,)."""
        part: NDArray[np.uint8] = self._slots[slot, rank]
        return part

    def head(self, slot: int, rank: int) -> NDArray[np.int64]:
        """The words at the head of a part: shape (PART_WORDS,)."""
        return self.part(slot, rank)[: 8 * PART_WORDS].view(np.int64)

    def fail(self, text: str) -> None:
        """Leave the reason and wake all that wait; the first reason stays."""
        if self.control[Word.ERROR] == 0:
            raw = text.encode()[:ERROR_BYTES]
            self._error[: len(raw)] = np.frombuffer(raw, np.uint8)
            self.control[Word.ERROR] = len(raw)
        self.control[Word.STOP] = 1
        for number in range(self.semaphores.count):
            self.semaphores.post(number)

    def raise_failure(self) -> None:
        """Raise what a reader or rank left as the reason of the end, if one did."""
        length = int(self.control[Word.ERROR])
        if length:
            raise RunFailed(self._error[:length].tobytes().decode(errors="replace"))


def create(shape: Shape) -> int:
    """A new ring's memory file: its descriptor."""
    fd = os.memfd_create("shardlab-ring", os.MFD_CLOEXEC)
    os.ftruncate(fd, shape.nbytes)
    return fd

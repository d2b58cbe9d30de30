"""The memory of a ring, and who may touch which part of it when.

One memory file, mapped shared by the readers and ranks of a node::

    control | error text | members | semaphores | heads: slot 0: rank 0, rank 1, ... | buffer 0 | buffer 1 | ...

Turn ``t`` goes through slot ``t % slots``. Its head for a rank says in which buffer that rank's part lies. A rank
may read both when the reader is through (``filled``). A reader may write the heads of a slot again when every rank
has taken the turn before it there (a word of each rank), and a buffer when the rank has let go of it (``free``): a
batch that is kept holds a buffer up, but no slot. Readers take turns, ``t % readers``, and ``slots`` is a multiple
of ``readers``: a slot has one writer for ever, so the order is the same however many read, and each reader has
buffers of its own. A rank's part is its own: no other rank looks at it.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from shardlab import shm
from shardlab.errors import RunFailed
from shardlab.wake import STRIDE, Semaphores

CONTROL_WORDS = 64
ERROR_BYTES = 8192
MEMBER_WORDS = 8
TAKEN = 4  # of a rank's words: the last turn that it took
PAGE = mmap.PAGESIZE
HEAD_WORDS = 8  # a cache line


class Word(IntEnum):
    """Places in the control words."""

    BASE = 0  # turn of the epoch's step 0
    EPOCH = 1
    CONSUMED = 2  # samples of the epoch that were delivered before, where it is resumed
    STEPS = 3  # steps of the epoch; -1 until the end of the stream
    STOP = 4  # readers are to stop
    ERROR = 5  # bytes of error text; 0 for none
    CLOSED = 6  # no reader is left


class Head(IntEnum):
    """Places in the words about a rank's part of a slot."""

    TURN = 0
    SAMPLES = 1
    END = 2  # whether the stream has ended before it
    BUFFER = 3  # where it lies


@dataclass(frozen=True)
class Shape:
    """How large a ring is. ``part_bytes`` is what a buffer holds: one rank's part of a slot."""

    ranks: int
    readers: int
    slots: int
    part_bytes: int

    @property
    def buffers(self) -> int:
        """One for each rank and slot."""
        return self.slots * self.ranks

    def buffers_of(self, reader: int) -> range:
        """Those that this reader fills."""
        each = self.buffers // self.readers
        return range(reader * each, (reader + 1) * each)

    @property
    def semaphores(self) -> int:
        """filled, free: buffers; start, idle: readers; arrive: 1; go: ranks; first, told: 1."""
        return 2 * self.buffers + 2 * self.readers + 1 + self.ranks + 2

    @property
    def members_at(self) -> int:
        """Where the words about each rank begin."""
        return 8 * CONTROL_WORDS + ERROR_BYTES

    @property
    def semaphores_at(self) -> int:
        """Where the semaphores begin."""
        return -(-(self.members_at + 8 * MEMBER_WORDS * self.ranks) // STRIDE) * STRIDE

    @property
    def heads_at(self) -> int:
        """Where the heads begin."""
        return self.semaphores_at + STRIDE * self.semaphores

    @property
    def buffers_at(self) -> int:
        """Where buffer 0 begins, on a page of its own."""
        return -(-(self.heads_at + 8 * HEAD_WORDS * self.buffers) // PAGE) * PAGE

    @property
    def nbytes(self) -> int:
        """Of the whole file; pages that nobody writes take no memory."""
        return self.buffers_at + self.buffers * self.part_bytes


def slots_for(readers: int, held: int) -> int:
    """Enough that each reader fills one while ``held`` are held and one is handed over; a multiple of readers."""
    return -(-(readers + held + 1) // readers) * readers


class Ring:
    """One process's map of a ring."""

    def __init__(self, handle: shm.Handle, shape: Shape) -> None:
        self.shape = shape
        raw = shm.attach_shared(handle)
        self.control = _words(raw[: 8 * CONTROL_WORDS])
        self._error = raw[8 * CONTROL_WORDS : shape.members_at]
        members = raw[shape.members_at : shape.members_at + 8 * MEMBER_WORDS * shape.ranks]
        self.members = [_words(words) for words in members.reshape(shape.ranks, -1)]
        at = shape.semaphores_at
        self.semaphores = Semaphores(raw[at : at + STRIDE * shape.semaphores], shape.semaphores)
        heads = raw[shape.heads_at : shape.heads_at + 8 * HEAD_WORDS * shape.buffers]
        self._heads = [_words(head) for head in heads.reshape(shape.buffers, -1)]
        self.buffers: list[NDArray[np.uint8]] = list(raw[shape.buffers_at :].reshape(-1, shape.part_bytes))

    def reset(self) -> None:
        """Nothing filled, nothing let go; by the one process that made the ring."""
        self.semaphores.reset({self._first: 1})

    def filled(self, slot: int, rank: int) -> int:
        """Semaphore: a reader is through with this rank's part."""
        return slot * self.shape.ranks + rank

    def free(self, buffer: int) -> int:
        """Semaphore: the rank that had this buffer has let go of it."""
        return self.shape.buffers + buffer

    def start(self, reader: int) -> int:
        """Semaphore: an epoch begins."""
        return 2 * self.shape.buffers + reader

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

    @property
    def _first(self) -> int:
        """Semaphore: who takes it may leave the reason of the end."""
        return self.go(self.shape.ranks)

    @property
    def _told(self) -> int:
        """Semaphore: the reason has been written."""
        return self._first + 1

    def head(self, slot: int, rank: int) -> memoryview[int]:
        """The words about a rank's part of a slot: shape (HEAD_WORDS,)."""
        return self._heads[slot * self.shape.ranks + rank]

    def all_have_taken(self, turn: int) -> bool:
        """Whether every rank has read its head of the turn that went through the slot before this one.

        A rank writes its word after branches on what it read there, and no processor moves a write before those.
        """
        least = turn - self.shape.slots
        return all(words[TAKEN] >= least for words in self.members)

    @property
    def is_stopping(self) -> bool:
        """Whether readers are to leave what they do: the epoch is over, or everything is."""
        return bool(self.control[Word.STOP] or self.control[Word.ERROR])

    def fail(self, text: str) -> None:
        """Leave the reason and wake all that wait; the first reason stays."""
        if not self.semaphores.wait(self._first, 0):
            return
        raw = (text or "for an unknown reason").encode()[:ERROR_BYTES]
        self._error[: len(raw)] = np.frombuffer(raw, np.uint8)
        self.control[Word.ERROR] = len(raw)
        for number in range(self.semaphores.count):
            if number != self._first:
                self.semaphores.post(number)

    def raise_failure(self) -> None:
        """Raise what a reader or rank left as the reason of the end, if one did."""
        if self.control[Word.ERROR]:
            if self.semaphores.wait(self._told, 1):  # from here on its text is seen too
                self.semaphores.post(self._told)
            length = int(self.control[Word.ERROR])
            raise RunFailed(self._error[:length].tobytes().decode(errors="replace"))


def _words(raw: NDArray[np.uint8]) -> memoryview[int]:
    """As 64-bit numbers. Python reads one out of a memoryview several times faster than out of an array."""
    return raw.data.cast("q")


def create(shape: Shape) -> shm.Handle:
    """A new ring's memory file, of this process."""
    return shm.create_shared("ring", shape.nbytes)

"""Which buffer a reader fills next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from shardlab.ring.memory import Ring, Word

SOON_S = 2e-3  # a rank that keeps up lets go within it; looking at all buffers would cost as much as some gathers


class Buffers:
    """The buffers of one reader, through all epochs.

    The one that was let go of last is filled first. It is still in the processor's cache, so that writing it
    and reading it again go at the speed of the cache; taken in turn, 24 buffers of 5 MB go through memory each
    time, which was measured at 0.6 times the rate. Each is filled once before any is filled again: pages that a
    system hands out cost more than that, and then do so at the start alone.

    ``_filled`` are (buffer, rank), the oldest first, in which order a rank mostly lets go of them. ``_kept`` are
    those that a rank still holds although it let go of a younger one: they may be held for ever, and nobody
    waits for them.
    """

    def __init__(self, ring: Ring, reader: int) -> None:
        self._ring = ring
        self._fresh = list(reversed(ring.shape.buffers_of(reader)))
        self._free: list[int] = []
        self._filled: deque[tuple[int, int]] = deque()
        self._kept: list[int] = []

    def wait_for(
        self, turn: int, count: int, before_waiting: Callable[[], None], look_every_s: float
    ) -> bool:
        """Wait until the heads of a turn may be written and ``count`` buffers are free.

        False where the ring is to stop, and nothing is taken.
        """
        patience_s = SOON_S
        while not self._is_ready(turn, count) and not self._ring.is_stopping:
            before_waiting()
            patience_s = SOON_S if self._wait_for_oldest(patience_s) or self._sweep() else look_every_s
        return not self._ring.is_stopping

    def take(self, rank: int) -> int:
        """A free buffer for a rank's part, which counts as filled from now on; one has to be free."""
        self._look_at_oldest()
        buffer = (self._fresh or self._free).pop()
        self._filled.append((buffer, rank))
        return buffer

    def _is_ready(self, turn: int, count: int) -> bool:
        self._look_at_oldest()
        return len(self._fresh) + len(self._free) >= count and self._ring.all_have_taken(turn)

    def _look_at_oldest(self) -> None:
        while self._filled and self._was_let_go(self._filled[0][0]):
            self._free.append(self._filled.popleft()[0])

    def _sweep(self) -> bool:
        """Look at every one; whether any was let go of."""
        free = [buffer for buffer in self._kept if self._was_let_go(buffer)]
        self._kept = [buffer for buffer in self._kept if buffer not in free]
        gone = [self._was_let_go(buffer) for buffer, _ in self._filled]
        last = {rank: place for place, (_, rank) in enumerate(self._filled) if gone[place]}
        still: deque[tuple[int, int]] = deque()
        for place, (buffer, rank) in enumerate(self._filled):
            if gone[place]:
                free.append(buffer)
            elif place < last.get(rank, -1):
                self._kept.append(buffer)
            else:
                still.append((buffer, rank))
        self._filled = still
        self._free += free
        return bool(free)

    def _wait_for_oldest(self, seconds: float) -> bool:
        """Sleep until the one is let go of that mostly is next."""
        if not self._filled:
            time.sleep(SOON_S)
            return False
        if not self._was_let_go(self._filled[0][0], seconds):
            return False
        self._free.append(self._filled.popleft()[0])
        return True

    def _was_let_go(self, buffer: int, timeout_s: float = 0.0) -> bool:
        """Whether it is free now. One that a failure seems to free may still be looked at."""
        ring = self._ring
        return ring.semaphores.wait(ring.free(buffer), timeout_s) and not ring.control[Word.ERROR]

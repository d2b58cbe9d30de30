"""Which buffer a reader fills next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from shardlab.ring.memory import Ring, Word


class Buffers:
    """The buffers of one reader, through all epochs.

    The one that was let go of last is filled first. It is still in the processor's cache, so that writing it
    and reading it again go at the speed of the cache; taken in turn, 24 buffers of 5 MB go through memory each
    time, which was measured at 0.6 times the rate. Each is filled once before any is filled again: pages that a
    system hands out cost more than that, and then do so at the start alone.
    """

    def __init__(self, ring: Ring, reader: int) -> None:
        self._ring = ring
        self._fresh = list(reversed(ring.shape.buffers_of(reader)))
        self._free: list[int] = []
        self._filled: deque[int] = (
            deque()
        )  # in the order of their turns, which is that of being let go, about

    def wait_for(self, count: int, before_waiting: Callable[[], None], look_every_s: float) -> bool:
        """Wait until ``count`` are free; False where the ring is to stop, and nothing is taken.

        The oldest is waited for, whatever else is free: no rank may be more than all slots behind.
        """
        while len(self._fresh) + len(self._free) < count and not self._ring.is_stopping:
            if not self._was_let_go(0):
                before_waiting()
                self._was_let_go(look_every_s)
        return not self._ring.is_stopping

    def take(self) -> int:
        """A free buffer, which counts as filled from now on; one has to be free."""
        while self._filled and self._was_let_go(0):
            pass
        self._filled.append((self._fresh or self._free).pop())
        return self._filled[-1]

    def _was_let_go(self, timeout_s: float) -> bool:
        """Whether the oldest is free now. One that a failure seems to free may still be looked at."""
        ring = self._ring
        if not ring.semaphores.wait(ring.free(self._filled[0]), timeout_s) or ring.control[Word.ERROR]:
            return False
        self._free.append(self._filled.popleft())
        return True

"""Batches in memory that is used again, but never while somebody still looks at it."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT = 8  # free buffers of one size: a training loop needs two or three
Bytes = NDArray[np.uint8]


class BufferPool:
    """Flat buffers by size. A buffer comes back when the last view of it has died.

    New memory costs a page fault for each 4 KiB, which is most of the cost of a batch; memory reused too
    early changes a batch under its reader: with one buffer, ``list(loader)`` would hold ten times the last.
    So the pool lends as many buffers as are alive at once, two or three in a training loop, and keeps no more
    than KEPT of those that come back: ``list(loader)`` leaves no second dataset behind.

    The view that is lent is what a tensor made of it keeps as long as its storage lives: in a list, in
    autograd's saved tensors, in a loader that fetches one batch ahead.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}
        self._lent: dict[int, weakref.ref[Any]] = {}
        self.made = 0

    def lend(self, nbytes: int) -> Bytes:
        """A buffer of ``nbytes``, its content undefined: shape (nbytes,)."""
        free = self._free.setdefault(nbytes, [])
        if free:
            buffer = free.pop()
        else:
            buffer = np.empty(nbytes, np.uint8)
            self.made += 1
        view = buffer[:]
        number = id(buffer)

        def back(_reference: object) -> None:
            self._lent.pop(number, None)
            if len(free) < KEPT:
                free.append(buffer)

        self._lent[number] = weakref.ref(view, back)
        return view

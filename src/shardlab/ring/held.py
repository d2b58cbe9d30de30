"""Whether somebody still looks at a batch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray


class Held:
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

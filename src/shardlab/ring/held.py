"""Whether somebody still looks at a batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Held:
    """A batch that is alive: its step and turn, and a word when the last view of its memory has died.

    All views keep ``owner``, an array that nobody else keeps.
    """

    def __init__(self, owner: NDArray[np.uint8], step: int, turn: int, let_go: Callable[[], None]) -> None:
        self.step, self.turn = step, turn
        self._reference: weakref.ref[Any] = weakref.ref(owner, lambda _reference: let_go())

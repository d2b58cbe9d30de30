"""Frames that were read, so that what processes share is read once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardlab.measure.census.pages import Words


class Seen:
    """Content of the shared frames that were read, in order of their names."""

    def __init__(self) -> None:
        self._names = np.zeros(0, np.uint64)
        self._content = np.zeros(0, np.uint64)

    def find(self, names: Words, shared: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Words]:
        """Which of the names were read, and what they hold."""
        known, content = np.zeros(names.size, bool), np.zeros(names.size, np.uint64)
        if self._names.size and shared.any():
            at = np.minimum(np.searchsorted(self._names, names), self._names.size - 1)
            known = shared & (self._names[at] == names)
            content[known] = self._content[at[known]]
        return known, content

    def add(self, names: Words, content: Words) -> None:
        """Remember these."""
        if names.size:
            merged = np.concatenate([self._names, names])
            order = np.argsort(merged, kind="stable")
            self._names = merged[order]
            self._content = np.concatenate([self._content, content])[order]

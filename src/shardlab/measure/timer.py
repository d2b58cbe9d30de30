"""Where a rank's seconds go, step by step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np


@dataclass
class StepTimer:
    """Wait and compute measured each by itself; what is left of the wall clock is ``other_s``, a difference.

    ``held_s`` is time in which the rank was stopped to read its memory; it is in none of the figures.
    """

    started_s: float = field(default_factory=time.perf_counter)
    waits_s: list[float] = field(default_factory=list)
    compute_s: float = 0.0
    held_s: float = 0.0
    ended_s: float | None = None

    def end(self) -> None:
        """The epoch is over."""
        self.ended_s = time.perf_counter()

    @property
    def wall_s(self) -> float:
        """Seconds of the epoch, less those held."""
        end = time.perf_counter() if self.ended_s is None else self.ended_s
        return end - self.started_s - self.held_s

    @property
    def wait_s(self) -> float:
        """Seconds blocked on the next batch, the end of the stream included."""
        return sum(self.waits_s)

    @property
    def other_s(self) -> float:
        """Neither wait nor compute: moving the batch, reading every byte of it, writing the ledger."""
        return max(0.0, self.wall_s - self.wait_s - self.compute_s)

    @property
    def first_batch_s(self) -> float | None:
        """From asking the loader for an iterator to its first batch: start of workers included."""
        return self.waits_s[0] if self.waits_s else None

    def wait_percentile_s(self, percent: float) -> float | None:
        """Percentile of the waits after the first."""
        rest = self.waits_s[1:]
        return float(np.percentile(rest, percent)) if rest else None

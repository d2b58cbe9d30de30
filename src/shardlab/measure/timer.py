"""Where a rank's seconds go, step by step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Mark:
    """How far an epoch was: steps done, bytes of their batches, and what they had taken, less what was spent held."""

    steps: int
    nbytes: int
    wall_s: float
    cpu_s: float


def prepared_while_held(first: Mark, held: Mark, after: Mark) -> tuple[float, float]:
    """Seconds, and processor seconds, that an epoch lacks because its rank was held before a step.

    Whoever reads ahead, workers or a ring's reader, goes on meanwhile, and the next step finds its batch ready; of
    epochs of a dozen steps that is a twelfth. The step should have taken for its bytes what those between the
    ``first`` and the hold took for theirs; ``after`` says what it took. Nothing where there is no such step.

    >>> prepared_while_held(Mark(1, 8, 5.0, 5.0), Mark(11, 88, 15.0, 25.0), Mark(12, 96, 15.25, 25.0))
    (0.75, 2.0)
    """
    between = held.nbytes - first.nbytes
    if held.steps == first.steps or between <= 0:
        return 0.0, 0.0
    part = (after.nbytes - held.nbytes) / between  # the last batch may be a small one
    due_s, due_cpu_s = part * (held.wall_s - first.wall_s), part * (held.cpu_s - first.cpu_s)
    return due_s - (after.wall_s - held.wall_s), due_cpu_s - (after.cpu_s - held.cpu_s)


@dataclass
class StepTimer:
    """Wait, compute, communication and the rest, each measured by itself.

    So that their sum against the wall clock, ``accounted_ratio``, is a check. ``other_s`` is what the loop does
    with a batch before it computes: moving it, reading every byte of it, writing the ledger. ``comm_s`` is None
    where ranks exchange nothing. ``held_s`` is time in which the rank was stopped to read its memory; it is in
    none of the figures.
    """

    started_s: float = field(default_factory=lambda: time.perf_counter())
    waits_s: list[float] = field(default_factory=list)
    compute_s: float = 0.0
    comm_s: float | None = None
    other_s: float = 0.0
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
    def accounted_ratio(self) -> float:
        """How much of the wall clock the four figures explain: 1 but for what lies between them."""
        parts = self.wait_s + self.compute_s + (self.comm_s or 0.0) + self.other_s
        return parts / self.wall_s if self.wall_s > 0 else 1.0

    @property
    def first_batch_s(self) -> float | None:
        """From asking the loader for an iterator to its first batch: start of workers included."""
        return self.waits_s[0] if self.waits_s else None

    def wait_percentile_s(self, percent: float) -> float | None:
        """Percentile of the waits after the first."""
        rest = self.waits_s[1:]
        return float(np.percentile(rest, percent)) if rest else None

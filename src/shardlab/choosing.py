"""Which of several configurations to take: the rule that every command goes by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

ONE_COPY = 1.1
"""Less is one copy; more may be, where the interval reaches down to one."""
SURELY_ONE = 1.5
"""An interval that ends below it leaves no second copy."""


class Candidate(Protocol):
    """A configuration's figures, medians over its runs; None is unknown."""

    @property
    def status(self) -> str:
        """``ok`` where every run ended well and every rank got what it should."""

    @property
    def copies(self) -> float | None:
        """Copies of the dataset on the fullest node."""

    @property
    def copies_low(self) -> float | None:
        """Lower end of their interval."""

    @property
    def copies_high(self) -> float | None:
        """Upper end of it."""

    @property
    def samples_per_s(self) -> float | None:
        """Distinct samples per second."""


def is_one_copy(candidate: Candidate) -> bool:
    """Whether the node holds one copy, or cannot be told from one that does."""
    return candidate.copies is not None and (
        candidate.copies <= ONE_COPY or (candidate.copies_low is not None and candidate.copies_low <= 1)
    )


def is_surely_one_copy(candidate: Candidate) -> bool:
    """Whether that may be said without a but."""
    copies, high = candidate.copies, candidate.copies_high
    return copies is not None and copies <= ONE_COPY and high is not None and high < SURELY_ONE


def best_of(candidates: Sequence[Candidate]) -> int | None:
    """The fastest of those that hold one copy; where none does, of those that hold fewest.

    Where copies are known of none, the fastest. Only what went well and has a speed is taken; None where nothing is.

    ::

                     copies        samples/s
        distributed  4.0            100
        ring         1.08 (1.06..)  200        the best: within 1.1 it is one copy, and faster than keyed
        keyed        1.00           150
    """
    well = [c for c in candidates if c.status == "ok" and c.samples_per_s is not None]
    known = [c for c in well if c.copies is not None]
    chosen = [c for c in known if is_one_copy(c)]
    if known and not chosen:
        fewest = min(c.copies_high if c.copies_high is not None else c.copies or 0.0 for c in known)
        chosen = [c for c in known if (c.copies_low if c.copies_low is not None else c.copies or 0.0) <= fewest]
    best = max(chosen or well, key=lambda c: c.samples_per_s or 0.0, default=None)
    return next((number for number, c in enumerate(candidates) if c is best), None)

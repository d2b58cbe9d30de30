"""Why a job holds what it holds: causes from facts, each with its evidence, bytes, cure and certainty."""

from __future__ import annotations

from shardlab.watching.causes import copied, ending, looks, objects, retention
from shardlab.watching.causes.copied import COPIES
from shardlab.watching.facts import HOLDS, LIKELY, Cause, Facts

__all__ = ["COPIES", "copies", "found"]


def found(facts: Facts) -> tuple[Cause, ...]:
    """All causes that the facts show, proven copies first, then most bytes first."""
    every = [
        *copied.causes(facts), *objects.causes(facts), *copied.nested(facts), *looks.causes(facts),
        *retention.causes(facts), *ending.causes(facts),
    ]  # fmt: skip
    return tuple(sorted(every, key=lambda c: (c.name not in COPIES, -(c.bytes or 0))))


def copies(facts: Facts, causes: tuple[Cause, ...]) -> tuple[float, str] | None:
    """How many copies of a dataset of ``facts.dataset_bytes`` there are, and how certain that is.

    The first copy, and what the causes say is held again. ``None`` where the size is not known, or where no
    census could be taken and nothing was inferred.
    """
    of = [cause for cause in causes if cause.name in COPIES and cause.bytes]
    if not facts.dataset_bytes or (facts.census is None and not of):
        return None
    inferred = sum(c.bytes or 0 for c in of if c.certainty == LIKELY)
    total = sum(c.bytes or 0 for c in of)
    whole = facts.census is not None and not facts.census.unreadable
    certain = whole and inferred <= total / 10
    return 1 + total / facts.dataset_bytes, HOLDS if certain else LIKELY

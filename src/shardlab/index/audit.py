"""Judges an epoch by its ledgers: did every sample come once, in its order, with its own content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.config import Tail
from shardlab.index import findings
from shardlab.index.deliveries import Deliveries, together
from shardlab.index.ledger import RankLedger
from shardlab.index.order import Layout, hex16, order_hash
from shardlab.index.rules import Finding, Rules, Words

__all__ = ["Audit", "Finding", "audit"]


@dataclass(frozen=True)
class Audit:
    """Counts over all ranks of one epoch, and what is wrong; ``None`` where a figure cannot be known.

    ``distinct`` counts the different indices, ``duplicates`` = ``delivered`` - ``distinct``, and ``missing``
    the samples that no rank got. ``order_hash`` is as in :mod:`shardlab.index.order`, 16 hexadecimal digits.
    """

    delivered: int
    distinct: int | None
    duplicates: int | None
    missing: int | None
    order_hash: str | None
    findings: tuple[Finding, ...]


def audit(
    ledgers: Sequence[RankLedger],
    *,
    epoch: int,
    samples: int | None,
    world_size: int,
    batch_size: int,
    tail: Tail,
    truncated: bool,
    shuffle: bool,
    layout: Layout | None,
    pad_allowed: int | None,
    len_reported: Sequence[int | None],
    expected_words: Words | None,
) -> Audit:
    """Judge one epoch; at most one finding of each name. ``ledgers`` and ``len_reported`` are by rank.

    ``samples``: the dataset's length, if known.
    ``truncated``: the epoch was ended early, so what is missing proves nothing.
    ``layout``: of the order without shuffling; ``None`` compares with the one that fits best.
    ``pad_allowed``: how many repeats padding may add; ``None``: as many as fill the last round.
    ``expected_words``: from indices int64[m] to the first 8 bytes of their content, uint64[m].
    Raises ValueError unless there are one ledger and one length for each rank.
    """
    if not len(ledgers) == len(len_reported) == world_size:
        raise ValueError(f"{world_size} ranks, but {len(ledgers)} ledgers and {len(len_reported)} lengths")
    rules = Rules(
        epoch, samples, world_size, batch_size, tail, truncated, shuffle, layout, pad_allowed,
        tuple(len_reported), expected_words,
    )  # fmt: skip
    got = together(ledgers)
    found = [check(got, rules) for check in findings.CHECKS]
    return Audit(
        delivered=len(got.index),
        distinct=len(got.values),
        duplicates=len(got.index) - len(got.values),
        missing=findings.missing_count(got, samples),
        order_hash=_hash(got, rules),
        findings=tuple(finding for finding in found if finding is not None),
    )


def _hash(got: Deliveries, rules: Rules) -> str | None:
    if not len(got.index):
        return None
    return hex16(order_hash(got.positions(rules.world_size, rules.batch_size), got.index))

"""The claims of ``claims.py`` answered: a row for each configuration, and what its figures say.

Nothing is measured here; ``claim_runs.py`` does that.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

WIDTH = 100
MIB = 1 << 20
SAME_RATIO = 1e-6  # losses that differ by less are the same curve: float64, summed in another order
NOT_HERE = "not run here"


@dataclass(frozen=True)
class Row:
    """A configuration asked about a claim. What was not measured is None or empty; ``reason`` says why.

    ``held_ratio`` is the largest part of the dataset that a rank holds, None where ranks do not say what they opened.
    ``losses`` are those of the steps of training, ``loss_difference_ratio`` their largest
    difference from the first configuration's, over that.
    """

    name: str
    claim: str
    configuration: str
    flags: str
    ranks: int
    copies: float | None = None
    copies_low: float | None = None
    copies_high: float | None = None
    reads_by_rank: str = ""
    held_mib_by_rank: str = ""
    held_ratio: float | None = None
    border_ratio: float | None = None
    limit_bytes: int | None = None
    peak_bytes: int | None = None
    exit_code: int | None = None
    oom_kills: int | None = None
    losses: str = ""
    loss_difference_ratio: float | None = None
    answer: str = ""
    claim_answer: str = ""
    reason: str = ""


def one_copy(row: Row, _: Sequence[Row] = ()) -> bool | None:
    """Whether the node holds one: the whole interval is nearer to one than to two. None where it is on both sides."""
    if row.copies_low is None or row.copies_high is None:
        return None
    if row.copies_high < 1.5:
        return True
    return False if row.copies_low > 1.5 else None


def replicated(row: Row, _: Sequence[Row] = ()) -> bool | None:
    """Whether it holds more than one."""
    one = one_copy(row)
    return None if one is None else not one


def own_part(row: Row, _: Sequence[Row] = ()) -> bool | None:
    """Whether a rank of W holds a W-th of the dataset and the shards at both borders, no more.

    Where ranks do not say, more copies on the node than W such parts make say that it is not so; fewer say nothing.
    """
    if row.border_ratio is None:
        return None
    most = 1 / row.ranks + row.border_ratio
    if row.held_ratio is not None:
        return row.held_ratio <= most
    return False if row.copies_low is not None and row.copies_low > row.ranks * most else None


def finished(row: Row, rows: Sequence[Row]) -> bool | None:
    """Whether it ended well under the limit; False where the kernel killed it.

    None where the first one, which should not fit, was not killed, and of a run that failed for another reason.
    """
    limited = [each for each in rows if each.limit_bytes is not None]
    if row.limit_bytes is None or not limited[0].oom_kills:
        return None
    if row.oom_kills:
        return False
    return True if row.exit_code == 0 else None


def same_curve(row: Row, _: Sequence[Row] = ()) -> bool | None:
    """Whether it has the losses of the first one."""
    return None if row.loss_difference_ratio is None else row.loss_difference_ratio <= SAME_RATIO


def difference_ratio(losses: Sequence[float], others: Sequence[float]) -> float | None:
    """The largest difference of two curves, over the second; None where they are not as long.

    >>> difference_ratio([2.0, 1.0], [2.0, 0.5])
    1.0
    """
    if not losses or len(losses) != len(others):
        return None
    return max(abs(one - other) / abs(other) for one, other in zip(losses, others, strict=True))


def word(row: Row, says: bool | None) -> str:
    """An answer: true, false, not clear, or not run here; none where a run only served to find the limit."""
    if row.exit_code is None:
        return NOT_HERE
    if row.peak_bytes is not None and row.limit_bytes is None:
        return ""
    return {True: "true", False: "false", None: "not clear"}[says]


def summary(rows: Sequence[Row]) -> str:
    """The answer to a claim: of one word, or with which configurations it is true and with which not."""
    answers = list(dict.fromkeys(row.answer for row in rows if row.answer))
    if len(answers) == 1:
        return answers[0]
    parts = []
    for answer in ("true", "false", "not clear", NOT_HERE):
        named = ", ".join(row.configuration for row in rows if row.answer == answer)
        if named:
            parts.append(f"{answer} with {named}" if answer in ("true", "false") else f"{answer}: {named}")
    return "; ".join(parts)


def answered(rows: Sequence[Row]) -> list[Row]:
    """All rows of a claim with the answer to it."""
    return [replace(row, claim_answer=summary(rows)) for row in rows]


def line(row: Row) -> str:
    """A row for the screen."""
    text = f"   {row.configuration:38} {figures(row) or row.reason} "
    return f"{text}{row.answer:>{max(0, WIDTH - len(text))}}".rstrip()


def figures(row: Row) -> str:
    """What was measured, as far as it was."""
    if row.peak_bytes is not None or row.limit_bytes is not None:
        ended = "finished" if row.exit_code == 0 else f"killed, {row.oom_kills}" if row.oom_kills else "failed"
        limit = "no limit" if row.limit_bytes is None else f"limit {_mib(row.limit_bytes)}"
        return f"{ended}, peak {_mib(row.peak_bytes)} MiB, {limit}"
    if row.losses:
        losses, differs = row.losses.split(), row.loss_difference_ratio
        compared = "not compared" if differs is None else f"differs by {differs:.1e}"
        return f"{len(losses)} steps, loss {float(losses[-1]):.6f}, {compared}"
    if row.copies is None or row.copies_high is None:
        return ""
    copies = f"{row.copies:.2f} ±{row.copies_high - row.copies:.2f} copies"
    if row.held_mib_by_rank and row.held_ratio is not None:
        return f"{copies}, holds {row.held_mib_by_rank} MiB ({row.held_ratio:.0%})"
    return f"{copies}, reads {row.reads_by_rank}"


def _mib(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / MIB:,.0f}"


def conclusion(row: Row) -> str:
    """The answer to the row's claim, wrapped."""
    return textwrap.fill(f"-> {row.claim_answer}", WIDTH, initial_indent="   ", subsequent_indent="      ")

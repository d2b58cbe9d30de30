"""Numbers and reasons as people read them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable

from shardlab.records import Measured, NodeRecord

_EXPLAINED = {field.name for record in (Measured, NodeRecord) for field in dataclasses.fields(record)}
_EXPLAINED |= {"run", "audit", "copies may be off"}
_NEXT_REASON = re.compile(rf"; (?=(?:{'|'.join(sorted(_EXPLAINED))})(?: \([^)]*\))?: )")


def mib(nbytes: float | None) -> str:
    """Bytes as MiB for the screen; unknown is a dash."""
    return "-" if nbytes is None else f"{nbytes / 2**20:,.1f}"


def many(number: int | None, what: str, plural: str = "") -> str:
    """``1 rank``, ``2 ranks``; ``plural`` where it is not the word with an s."""
    return f"{number} {what}" if number == 1 else f"{number} {plural or what + 's'}"


def spans(numbers: Iterable[int]) -> str:
    """``1-3, 5`` for 1, 2, 3, 5.

    >>> spans([5, 1, 2, 3])
    '1-3, 5'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def significant(value: float | None, digits: int = 3) -> str:
    """So many significant digits, thousands apart and never with an exponent; what is no number is a dash.

    >>> significant(4.9), significant(1234.5), significant(0.00761), significant(9.996)
    ('4.90', '1,230', '0.00761', '10.0')
    """
    if value is None or not math.isfinite(value):
        return "-"
    power = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 9.996 has two digits before
    decimals = digits - 1 - power
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def bounded(value: float | None, low: float | None, high: float | None, unit: str = "") -> str:
    """:func:`significant` digits with their unit, and in brackets the bounds where both are known and differ.

    >>> bounded(37.23, 31.2, 43.62), bounded(120.3, None, None, " ms")
    ('37.2 (31.2 to 43.6)', '120 ms')
    """
    text, ends = significant(value), [significant(low), significant(high)]
    if text == "-":
        return text
    return text + unit + (f" ({' to '.join(ends)})" if "-" not in ends and low != high else "")


def times(value: float | None, low: float | None, high: float | None) -> str:
    """A ratio with its bounds.

    >>> times(4.912, 4.2, 5.0), times(120.3, None, None)
    ('4.91 times (4.20 to 5.00)', '120 times')
    """
    return bounded(value, low, high, " times")


def reasons(text: str | None) -> dict[str, str]:
    """``reason`` of ``runs.csv`` as column -> why; a reason may have semicolons of its own.

    >>> reasons("run: choose from a, b; cure: wait; copies (n2): no control")
    {'run': 'choose from a, b; cure: wait', 'copies (n2)': 'no control'}
    """
    parts = (part.partition(": ") for part in _NEXT_REASON.split(text or ""))
    return {column: why for column, colon, why in parts if colon}

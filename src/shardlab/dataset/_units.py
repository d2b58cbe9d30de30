"""Sizes and counts as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

from shardlab.errors import UsageError

_BYTES = (
    {"": 1, "B": 1}
    | {
        prefix + unit: base**power
        for power, prefix in enumerate("KMGT", start=1)
        for unit, base in (("iB", 1024), ("B", 1000))
    }
    | {"kB": 1000}
)
_COUNTS = {"": 1, "k": 1000, "M": 1_000_000}


def parse_bytes(text: str, rule: str) -> int:
    """Bytes, rounded down. Raises UsageError that begins with ``rule``.

    >>> parse_bytes("64KiB", "a size"), parse_bytes("1.5GB", "a size"), parse_bytes("1000000", "a size")
    (65536, 1500000000, 1000000)
    """
    return _parse(text, _BYTES, rule, ["256MiB", "1GB", "1000000 (bytes)"])


def parse_count(text: str, rule: str) -> int:
    """A number of things. Raises UsageError that begins with ``rule``.

    >>> parse_count("200k", "a count"), parse_count("1.5M", "a count"), parse_count("17", "a count")
    (200000, 1500000, 17)
    """
    return _parse(text, _COUNTS, rule, ["5000", "200k", "1M"])


def _parse(text: str, units: dict[str, int], rule: str, examples: list[str]) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", text)
    if match is None or match[2] not in units:
        raise UsageError(rule, text, examples)
    return int(Fraction(match[1]) * units[match[2]])

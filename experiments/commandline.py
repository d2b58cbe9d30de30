"""The command line that experiments share, and how they print an interval."""

from __future__ import annotations

import argparse


def options(doc: str | None, full: str, rounds: int | None = None) -> argparse.Namespace:
    """``full``, ``only`` and, where ``rounds`` is how many there are by default, ``rounds``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, help=f"this many of each instead of {rounds}")
    return parser.parse_args()


def span(low: float | None, high: float | None, how: str = ".2f") -> str:
    """`` [1.20, 1.40]``; nothing where there were too few rounds for an interval."""
    return "" if low is None or high is None else f" [{low:{how}}, {high:{how}}]"

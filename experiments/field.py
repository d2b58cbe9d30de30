"""What the field says of a ratio, and whether a measured one agrees with it."""

from __future__ import annotations

from dataclasses import dataclass

ABOUT_ONE = 1.25  # a ratio within this factor of 1 says that two things are equal
SAME_MAGNITUDE = 2.0  # two ratios within this factor of each other: other machines, other versions


@dataclass(frozen=True)
class Published:
    """A ratio as its source has it; ``ratio`` is None where the source claims a side and gives no figure.

    ``above_one``: the side of 1 that is claimed; None where the figure says it.
    """

    source: str
    ratio: float | None = None
    above_one: bool | None = None


NOTHING = Published("")


def agreement(measured: float | None, published: Published) -> str:
    """``direction and magnitude``, ``direction``, ``neither``, or empty where there is nothing to compare.

    The direction agrees where both are above 1, below 1, or about 1; the magnitude within SAME_MAGNITUDE.

    >>> agreement(4.1, Published("a paper", 5.2)), agreement(0.5, Published("a paper", 5.2))
    ('direction and magnitude', 'neither')
    """
    if measured is None or (published.ratio is None and published.above_one is None):
        return ""
    if published.ratio is None:
        claimed = 1 if published.above_one else -1
        return "direction" if _side(measured) == claimed else "neither"
    if _side(measured) != _side(published.ratio):
        return "neither"
    factor = max(measured / published.ratio, published.ratio / measured)
    return "direction and magnitude" if factor <= SAME_MAGNITUDE else "direction"


def _side(ratio: float) -> int:
    """1 above one, -1 below, 0 about it."""
    if 1 / ABOUT_ONE <= ratio <= ABOUT_ONE:
        return 0
    return 1 if ratio > 1 else -1

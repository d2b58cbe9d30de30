"""What a page is made of: frozen values, text only, escaped where the template writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

TIGHT = 24  # characters, a run_id among them
LONG = 15  # rows


@dataclass(frozen=True)
class Text:
    """A paragraph; a ``loud`` one is set in a frame, for what the reader must not miss."""

    kind: ClassVar[str] = "text"
    text: str
    loud: bool = False


@dataclass(frozen=True)
class Commands:
    """Command lines, each with what it made."""

    kind: ClassVar[str] = "commands"
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Terms:
    """Words and what they mean."""

    kind: ClassVar[str] = "terms"
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """Cells as text. The first cell of a row names the row. One that ``folds`` and is long is opened by its reader.

    Columns in ``numbers`` stand to the right; those in ``tight`` are short enough never to break.
    """

    kind: ClassVar[str] = "table"
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int]
    tight: frozenset[int]
    folds: bool = False

    @property
    def is_long(self) -> bool:
        """Whether it is folded away until somebody asks for it."""
        return self.folds and len(self.rows) > LONG

    @classmethod
    def of(cls, caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
        """A table whose columns of numbers are those without a cell that reads otherwise."""
        cells = tuple(tuple(row) for row in rows)
        columns = list(enumerate(zip(*cells, strict=True)))
        numbers = {at for at, column in columns if at and all(map(is_number, column))}
        tight = {at for at, column in columns if max(map(len, column)) <= TIGHT}
        return cls(caption, tuple(head), cells, frozenset(numbers), frozenset(tight))

    def look(self, column: int) -> str:
        """Names of style classes of a column."""
        looks = {"number": column in self.numbers, "tight": column in self.tight}
        return " ".join(name for name, applies in looks.items() if applies)


@dataclass(frozen=True)
class Picture:
    """An inline SVG. ``svg`` is markup that :mod:`shardlab.reporting.svg` made; the rest is plain text.

    ``name`` says what the figure is, ``words`` the figures in it for those who cannot see them, and
    ``caption`` how it is read.
    """

    kind: ClassVar[str] = "picture"
    svg: str
    name: str
    words: str
    caption: str = ""


@dataclass(frozen=True)
class Image:
    """A picture file, its bytes in ``uri``: shown as an image, so that no script in it runs.

    ``name`` and ``words`` as in :class:`Picture`.
    """

    kind: ClassVar[str] = "image"
    uri: str
    name: str
    words: str


Part = Text | Commands | Terms | Table | Picture | Image


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it, side by side where the screen is wide and ``grid`` is true."""

    title: str
    parts: tuple[Part, ...]
    grid: bool = False

    def anchor(self, number: int) -> str:
        """A name for links into the page, made of letters and its number only."""
        return f"s{number}"


@dataclass(frozen=True)
class Page:
    """All of a report; ``verdict`` comes first, the most important sentence at its head."""

    title: str
    verdict: tuple[str, ...]
    made_from: str
    sections: tuple[Section, ...]


def is_number(text: str) -> bool:
    """Whether a cell reads as a number, an interval in brackets included; unknown is one too.

    >>> is_number("1,234.5"), is_number("4.0 (3.9 to 4.1)"), is_number("-"), is_number("ring")
    (True, True, True, False)
    """
    number = r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?%?"
    return text == "-" or re.fullmatch(rf"{number}( \({number} to {number}\))?", text) is not None

"""The live view in a terminal: a line for each rank or other process, and what is known so far."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardlab.watching.facts import Cause, Limit, Seen
from shardlab.watching.permits import Refusal
from shardlab.words import mib

WIDTH = 100
MOST_LINES = 16
LEAST_LINES = 4
MOST_BELOW = 10
"""Lines below the processes, at most: limits, causes, refusals, the time."""

PER_SECOND = 2


class Screen:
    """Draws on stderr; nothing where that is no terminal."""

    def __init__(self, *, shown: bool) -> None:
        self._console = Console(file=sys.stderr)
        self._console.width = width_of(sys.stderr)
        self._shown = shown and sys.stderr.isatty()
        self._live = Live(console=self._console, refresh_per_second=PER_SECOND, transient=True)
        self._drawn = -1.0

    def __enter__(self) -> Screen:
        if self._shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, lines: Iterable[str]) -> None:
        """Lines that stay, above what is drawn."""
        for line in wrapped(lines, self._console.width):
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._console.file.flush()

    def draw(
        self,
        t_s: float,
        seen: Sequence[Seen],
        limits: Sequence[Limit],
        causes: Sequence[Cause],
        refused: Sequence[Refusal] = (),
    ) -> None:
        """What there is now."""
        self._drawn = t_s
        below = _below(t_s, limits, causes, refused, self._console.width)
        # the header and the line for those left out are two more
        most = max(LEAST_LINES, min(MOST_LINES, self._console.height - MOST_BELOW - 2))
        self._live.update(Group(table(seen, most), *below))

    def is_due(self, t_s: float) -> bool:
        """Whether anybody looks, and what is drawn is half a second old."""
        return self._shown and t_s - self._drawn >= 1 / PER_SECOND


def wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """Each line as lines of at most ``width`` columns, broken between words; a longer word has one of its own."""
    for line in lines:
        yield from textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


def width_of(file: TextIO) -> int:
    """Columns of text for a terminal, or for a file."""
    try:
        return max(40, min(os.get_terminal_size(file.fileno()).columns, WIDTH))
    except (OSError, ValueError):
        return WIDTH


def are_one_place(one: TextIO, other: TextIO) -> bool:
    """Whether what is written to either is read as one text: a terminal, or a file that both go to."""
    try:
        ends = [os.fstat(file.fileno()) for file in (one, other)]
    except (OSError, ValueError):
        return one is other
    return (ends[0].st_dev, ends[0].st_ino) == (ends[1].st_dev, ends[1].st_ino)


def table(seen: Sequence[Seen], most: int = MOST_LINES) -> Table:
    """Processes that live; where there are many, the ranks, and all others in one line."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("process", "pid", "started by"):
        shown.add_column(name, no_wrap=True)
    for name in ("RSS MiB", "PSS", "anon", "shared", "file", "grown"):
        shown.add_column(name, justify="right", no_wrap=True)
    living = [one for one in seen if one.left_s is None]
    lines = living if len(living) <= most else [one for one in living if one.member.role == "rank"]
    for one in lines[:most]:
        shown.add_row(_who(one), str(one.member.pid), one.member.start_method or "-", *_amounts(one))
    shown_pids = {one.member.pid for one in lines[:most]}
    left = [one for one in living if one.member.pid not in shown_pids]
    if left:
        read = [one.last.pss_bytes for one in left if one.last is not None and one.last.pss_bytes is not None]
        shown.add_row(f"and {len(left)} more", "", "", "", mib(sum(read) if read else None))
    return shown


def _who(one: Seen) -> str:
    member = one.member
    if member.role == "rank":
        return f"rank {member.rank} {member.name}"[:34]
    if member.role == "worker":
        return f"  rank {member.rank} worker {member.worker}"
    return f"{member.role} {member.name}"[:34]


def _amounts(one: Seen) -> list[str]:
    first, last = one.first, one.last
    if last is None:
        return [mib(one.rss_bytes), "-", "-", "-", "-", "-"]
    ends = (first.pss_bytes if first else None, last.pss_bytes)
    grown = None if ends[0] is None or ends[1] is None else ends[1] - ends[0]
    return [mib(one.rss_bytes), *map(mib, (
        last.pss_bytes, last.pss_anon_bytes, last.pss_shmem_bytes, last.pss_file_bytes, grown
    ))]  # fmt: skip


def _below(
    t_s: float, limits: Sequence[Limit], causes: Sequence[Cause], refused: Sequence[Refusal], width: int
) -> list[Text]:
    nearest = sorted(limits, key=lambda limit: -limit.ratio)[:2]
    near = [f"{limit.ratio:.0%} full: {limit.name} of {limit.where}" for limit in nearest]
    found = [Text(f"{cause.certainty} {cause.name} {mib(cause.bytes)} MiB") for cause in causes[:3]]
    lost = wrapped((refusal.sentence for refusal in refused), width)
    dim = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in (*near, *lost)]
    lines = [*dim[: len(near)], *found, *dim[len(near) :]]
    return [*lines[: MOST_BELOW - 1], Text(f"{t_s:.0f} s", style="dim")]

"""From pages to the answer: which content several groups of processes hold, pure arithmetic on columns.

A page is a row (content, frame, process, kind). Content that a process holds k times over (an array of ones is one
page, many times) counts as k contents, (content, 0) to (content, k - 1), so that each row of a process is a content
of its own. Then, content by content::

    frame 7   processes 1 2 3        two frames hold it, so one of them is a duplicate;
    frame 9   process 4              four processes hold it, in two groups: (1, 2, 3) and (4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardlab.measure.census.pages import FORKED, OF_FILE, Words
from shardlab.measure.census.result import KINDS, Held, Repeat

_RANDOM = np.random.default_rng(0x5A4D)  # fixed: names of sets need to differ, not to be secret
"""Names a set of processes by the sum of a number for each; that two sets get one name has odds of 2^-64."""


@dataclass(frozen=True)
class Rows:
    """A row per page; columns of equal length. ``process`` and ``kind`` are places in a list of them."""

    content: Words
    frame: Words
    process: NDArray[np.uint16]
    kind: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.content)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Rows:
        """Some of the rows, or all in another order."""
        return Rows(self.content[index], self.frame[index], self.process[index], self.kind[index])


def joined(parts: Sequence[Rows]) -> Rows:
    """One below the other."""
    if not parts:
        return Rows(*(np.zeros(0, kind) for kind in (np.uint64, np.uint64, np.uint16, np.uint8)))  # type: ignore[arg-type]
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in Rows.__annotations__))


@dataclass(frozen=True)
class Counted:
    """Bytes by what they hold. ``squares`` sums the squared duplicate pages of each content of a sample."""

    duplicate_bytes: int
    squares: float
    by_holders: dict[int, int]
    repeats: tuple[Repeat, ...]
    by_process: dict[int, Held]


def numbered(rows: Rows) -> tuple[Rows, Words]:
    """Content that a process holds several times made distinct, and what it was.

    Frames that it shares come first (the others have the highest bit set), so that sharers number them alike.
    """
    order = np.lexsort((rows.frame, rows.content, rows.process))
    rows = rows.take(order)
    same = np.zeros(len(rows), bool)
    same[1:] = (rows.content[1:] == rows.content[:-1]) & (rows.process[1:] == rows.process[:-1])
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(rows))))
    nth = (np.arange(len(rows)) - first).astype(np.uint64)
    # an odd multiple of a hash is as good a hash, and 0 leaves it as it is
    content = rows.content ^ (nth * np.uint64(0x9E3779B97F4A7C15))
    return Rows(content, rows.frame, rows.process, rows.kind), rows.content


def counted(rows: Rows, pids: Sequence[int], page: int, scale: float) -> Counted:
    """What the rows say, in bytes; ``scale`` is how many pages each of them stands for."""
    if not len(rows):
        return Counted(0, 0.0, {}, (), {pid: Held({}, {}, {}) for pid in pids})
    rows, origin = numbered(rows)
    order = np.lexsort((rows.process, rows.frame, rows.content))
    rows, origin = rows.take(order), origin[order]
    new_content = np.r_[True, rows.content[1:] != rows.content[:-1]]
    new_frame = new_content | np.r_[True, rows.frame[1:] != rows.frame[:-1]]
    content = np.cumsum(new_content) - 1  # content: (rows,), the number of each row's content
    starts = np.flatnonzero(new_frame)  # a row for each frame from here on
    of_file = rows.frame[starts] & _MARKS == OF_FILE
    of_file &= rows.kind[starts] == KINDS.index("file")
    # frames: (contents,), those that no file backs: these would come back from where they came
    frames = np.bincount(content[starts], weights=~of_file).astype(np.int64)
    duplicates = np.maximum(frames - 1, 0)
    holders = np.bincount(content)
    unit = page * scale
    sizes = np.bincount(holders)
    by_holders = {int(n): round(int(sizes[n]) * unit) for n in np.flatnonzero(sizes) if n}
    repeats = _repeats(rows, content, starts, of_file, duplicates, pids, unit)
    held = _by_process(rows, np.diff(np.r_[starts, len(rows)]), duplicates[content] > 0, pids, unit)
    squares = 0.0  # of interest where rows are a sample
    if scale > 1:
        _, place = np.unique(origin[new_content], return_inverse=True)
        squares = float((np.bincount(place, weights=duplicates) ** 2).sum())
    return Counted(round(int(duplicates.sum()) * unit), squares, by_holders, repeats, held)


_MARKS = np.uint64(7 << 61)


def _repeats(
    rows: Rows,
    content: NDArray[np.intp],
    starts: NDArray[np.intp],
    of_file: NDArray[np.bool_],
    duplicates: NDArray[np.int64],
    pids: Sequence[int],
    unit: float,
) -> tuple[Repeat, ...]:
    """Who repeats what, most bytes first: contents with the same groups of holders are one repeat."""
    names = _RANDOM.integers(1, 1 << 63, len(pids), dtype=np.uint64)
    of_frame = np.add.reduceat(names[rows.process], starts)  # which processes map each frame
    of_frame *= np.uint64(0xD6E8FEB86659FD93)
    of_frame ^= of_frame >> np.uint64(32)
    of_frame[of_file] = 0
    first_frames = np.flatnonzero(np.r_[True, content[starts][1:] != content[starts][:-1]])
    patterns = np.add.reduceat(of_frame, first_frames)  # (contents,)
    repeated = np.flatnonzero(duplicates)
    if not repeated.size:
        return ()
    _, example, inverse = np.unique(patterns[repeated], return_index=True, return_inverse=True)
    ends = np.r_[starts[1:], len(rows)]
    last_frames = np.r_[first_frames[1:], starts.size] - 1
    found = []
    for number, at in enumerate(repeated[example].tolist()):
        members = repeated[inverse == number]
        groups = sorted(
            tuple(sorted(pids[p] for p in rows.process[starts[f] : ends[f]]))
            for f in range(first_frames[at], last_frames[at] + 1)
            if not of_file[f]
        )
        told = np.where(of_file[last_frames[members]], first_frames[members], last_frames[members])
        kinds = _kinds(rows.kind[starts[told]])
        found.append(
            Repeat(tuple(groups), round(members.size * unit), round(int(duplicates[members].sum()) * unit), kinds)
        )
    return tuple(sorted(found, key=lambda repeat: -repeat.duplicate_bytes))


def _kinds(kinds: NDArray[np.uint8]) -> tuple[str, ...]:
    """Kinds of mapping that hold a twentieth or more of these contents."""
    counts = np.bincount(kinds, minlength=len(KINDS))
    return tuple(kind for kind, count in zip(KINDS, counts, strict=True) if count * 20 >= kinds.size)


def _by_process(
    rows: Rows, sharers: NDArray[np.intp], repeated: NDArray[np.bool_], pids: Sequence[int], unit: float
) -> dict[int, Held]:
    alone = np.repeat(sharers, sharers) == 1

    def sums(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        # (processes, kinds)
        places = rows.process[mask].astype(np.int64) * len(KINDS) + rows.kind[mask]
        return np.bincount(places, minlength=len(pids) * len(KINDS)).reshape(len(pids), len(KINDS))

    tables = [sums(mask) for mask in (np.ones(len(rows), bool), alone, repeated)]
    found = {}
    for row, pid in enumerate(pids):
        resident, exclusive, again = (
            {k: round(int(n) * unit) for k, n in zip(KINDS, table[row], strict=True) if n} for table in tables
        )
        found[pid] = Held(resident, exclusive, again)
    return found


def split_forked(rows: Rows, weights: NDArray[np.float32], ranks: Mapping[int, int]) -> Rows:
    """Pages that look like one frame, shared by fork, and are two: one for each rank that made its own.

    Without frame numbers two ranks of one family that put equal content at the same address, each shared with
    its own workers, look like one frame of all of them. ``weights`` is for each row 1 over the number of processes
    that map its page, as the kernel gives it for the whole mapping: a frame's weights sum to 1, and two frames' to
    2. ``ranks`` is the rank of each process, by place.
    """
    order = np.lexsort((rows.content, rows.frame))
    rows, weights = rows.take(order), weights[order]
    if not len(rows):
        return rows
    new = np.r_[True, (rows.frame[1:] != rows.frame[:-1]) | (rows.content[1:] != rows.content[:-1])]
    starts = np.flatnonzero(new)
    several = np.add.reduceat(weights, starts) >= 1.5
    split = several[np.cumsum(new) - 1] & (rows.frame & _MARKS == FORKED)
    of = np.array([ranks.get(place, -1) + 1 for place in range(int(rows.process.max()) + 1)], np.uint64)
    frame = np.where(split, rows.frame ^ (of[rows.process] << np.uint64(40)), rows.frame)
    return Rows(rows.content, frame, rows.process, rows.kind)

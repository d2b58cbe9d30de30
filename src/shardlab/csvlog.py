"""Tidy CSV files that many processes append to and no death of a process corrupts.

One call of :func:`append` is one write under one lock::

    lock -> repair the tail -> compare the header -> write rows -> unlock
               |                   |                   |
               |                   |                   '-- cut back to the old length if it fails
               |                   '-- another header: runs.csv moves to runs.1.csv, a new file starts
               '-- killed mid-row: the partial row moves to runs.csv.torn

Standard library only: ranks and the monitor write through it.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from shardlab.errors import RowsLost, UsageError
from shardlab.filelock import locked
from shardlab.records import row

FILES = ("runs.csv", "nodes.csv", "ranks.csv", "memory.csv", "training.csv", "compare.csv")

_ELSEWHERE = "name another folder with --results"
_CURES = {
    errno.ENOSPC: f"free space on that file system, or {_ELSEWHERE}",
    errno.EDQUOT: f"free some of your quota, or {_ELSEWHERE}",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EROFS: f"the file system is read-only: {_ELSEWHERE}",
    errno.EACCES: f"make it writable for this user, or {_ELSEWHERE}",
    errno.EPERM: f"make it writable for this user, or {_ELSEWHERE}",
}


def append(folder: Path, name: str, rows: Sequence[Any]) -> None:
    """Append dataclass records of one kind to ``folder/name``, a ``.csv`` file; the header is their fields.

    Every record is one line and is there as a whole or not at all. ``None`` is an empty cell; booleans are
    ``true`` and ``false``; floats read back exactly; a line break in a string becomes a space; a string that
    a spreadsheet would run as a formula (it starts with ``=``, ``+`` or ``@``) gets a leading ``'``.

    Raises RowsLost where the rows could not be written; the rows that were there before stay.
    """
    if not name.endswith(".csv"):
        raise ValueError(f"the name of a results file ends in .csv, not {name!r}")
    if not rows:
        return
    flat = [row(record) for record in rows]
    header = list(flat[0])
    if any(list(each) != header for each in flat):
        raise ValueError(f"rows for {name} have different columns")
    path, head, body = folder / name, _lines([header]), _lines([list(each.values()) for each in flat])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while not _appended(path, head, body):
            pass
    except OSError as error:
        raise RowsLost(
            f"{path}: {len(rows)} rows ({len(body)} bytes) could not be written: {error.strerror}; "
            f"earlier rows are kept. Cure: {_CURES.get(error.errno or 0, _ELSEWHERE)}"
        ) from error


def check_writable(folder: Path) -> None:
    """Create ``folder`` and write a few bytes in it, so that a run does not end with nowhere to put its rows.

    Raises UsageError with the cure.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:  # without a name, where the system can
            _write_all(probe.fileno(), b"probe\n")
            os.fsync(probe.fileno())  # where a network file system says that it is full
        for file in (folder / name for name in FILES):
            if file.exists() and not os.access(file, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    except OSError as error:
        why = f"{error.strerror}: {error.filename or folder}"
        raise UsageError(
            f"--results must name a folder that rows can be written to ({why})",
            str(folder),
            cure=_CURES.get(error.errno or 0, _ELSEWHERE),
        ) from error


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a results file as text, none where there is no file. A row not yet finished is left out."""
    return list(csv.DictReader(io.StringIO(whole_lines(path).decode(errors="replace"), newline="")))


def whole_lines(path: Path) -> bytes:
    """The content of a file up to its last newline; nothing where there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    return content[: content.rfind(b"\n") + 1]


def _lines(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in cells] for cells in rows)
    return text.getvalue().encode(errors="backslashreplace")  # argv may hold bytes that are no text


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    text = re.sub("\r\n|[\r\n\0]", " ", str(value))
    return "'" + text if text.startswith(("=", "+", "@")) else text


def _appended(path: Path, head: bytes, body: bytes) -> bool:
    """False where a file with another header stood in the way; it has been moved."""
    with locked(path) as fd:
        _repair(fd, path)
        found = _first_line(fd)
        if found and found != head:
            _move_aside(path)
            return False
        _write_all(fd, body if found else head + body)
        return True


def _write_all(fd: int, data: bytes) -> None:
    """Append all of ``data`` or nothing."""
    before, left = os.fstat(fd).st_size, memoryview(data)
    try:
        while left:
            # A short write is no error of its own: the next one says why (no space, a limit, a quota).
            left = left[os.write(fd, left) :]
    except BaseException:
        with suppress(OSError):  # the next writer repairs the tail
            os.ftruncate(fd, before)
        raise


def _repair(fd: int, path: Path) -> None:
    """Cut off a row that a killed writer left unfinished, and keep it beside the file."""
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return
    content = whole_lines(path)
    torn = os.pread(fd, size - len(content), len(content))
    beside = path.with_name(path.name + ".torn")
    with beside.open("ab", buffering=0) as kept:
        _write_all(kept.fileno(), torn + b"\n")
    os.ftruncate(fd, len(content))
    _tell(f"{path}: an unfinished row of {len(torn)} bytes was cut off and kept in {beside.name}")


def _first_line(fd: int) -> bytes:
    line, end = b"", -1
    while end < 0 and (more := os.pread(fd, 65536, len(line))):
        line += more
        end = line.find(b"\n")
    return line[: end + 1]


def _move_aside(path: Path) -> None:
    n = 1
    while (target := path.with_name(f"{path.stem}.{n}.csv")).exists():
        n += 1
    path.rename(target)
    _tell(f"{path}: has other columns, so it was moved to {target.name} and a new file starts")


def _tell(line: str) -> None:
    print(line, file=sys.stderr)

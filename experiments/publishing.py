"""Where experiments leave their figures: tidy CSV, each row with its environment and the command that made it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardlab.measure import kernel

OUT = Path(__file__).parent.parent / "results" / "published"
Line = dict[str, str]
"""A row as the file has it."""


def publish(
    name: str, rows: Sequence[Any], key: str | None = None, order: Callable[[Line], Any] | None = None
) -> None:
    """Write dataclass rows of one kind to ``results/published/NAME``, in place of what an earlier run wrote.

    With a ``key``, a column, only rows with the same key are replaced: what was not measured again stays, unless it
    has other columns. ``order`` sorts all rows of the file. Without rows nothing is written.
    """
    if not rows:
        return
    command = " ".join(["python", f"experiments/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    environment = kernel.environment() | {"argv": command}
    written = [_line(asdict(row) | environment) for row in rows]
    merged = _merged(_read(OUT / name), written, key) if key else written
    _replace(OUT / name, sorted(merged, key=order) if order else merged)
    _draw(Path(name).stem)


def _line(row: dict[str, Any]) -> Line:
    return {column: "" if value is None else str(value) for column, value in row.items()}


def _merged(earlier: Sequence[Line], written: Sequence[Line], key: str) -> list[Line]:
    columns = list(written[0])
    kept = {row[key]: row for row in earlier if list(row) == columns}
    return list((kept | {row[key]: row for row in written}).values())


def _replace(path: Path, rows: Sequence[Line]) -> None:
    """All or nothing: whoever is interrupted leaves the file that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _draw(name: str) -> None:
    """The picture of it, if there is one, in a process of its own: the memory of this one may still be measured."""
    subprocess.run([sys.executable, Path(__file__).with_name("pictures.py"), name], check=False)


def _read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))

"""Where experiments leave their figures: tidy CSV, each row with its environment and the command that made it."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardlab.measure import kernel

OUT = Path(__file__).parent.parent / "results" / "published"


def publish(name: str, rows: Sequence[Any], key: str | None = None) -> None:
    """Write dataclass rows of one kind to ``results/published/NAME``, in place of what an earlier run wrote.

    With a ``key``, a column, only rows with the same key are replaced: what was not measured again stays.
    """
    OUT.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", f"experiments/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    environment = kernel.environment() | {"argv": command}
    written = [asdict(row) | environment for row in rows]
    kept = {row[key]: row for row in _read(OUT / name)} if key else {}
    merged = kept | {str(row[key]): row for row in written} if key else dict(enumerate(written))
    with (OUT / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(written[0]))
        writer.writeheader()
        writer.writerows(merged.values())


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))

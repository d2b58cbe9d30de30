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


def publish(name: str, rows: Sequence[Any]) -> None:
    """Write dataclass rows of one kind to ``results/published/NAME``, in place of what an earlier run wrote."""
    OUT.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", f"experiments/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    environment = kernel.environment() | {"argv": command}
    with (OUT / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, [*asdict(rows[0]), *environment])
        writer.writeheader()
        writer.writerows(asdict(row) | environment for row in rows)

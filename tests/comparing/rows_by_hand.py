"""Rows of ``runs.csv`` as text, with figures that a person chose."""

from __future__ import annotations

from typing import Any

from shardlab.analysis.load import columns
from shardlab.comparing.matrix import names_of
from shardlab.comparing.turns import key_of_row

Row = dict[str, str]


def run_row(sampler: str, store: str, speed: float | None = None, **given: Any) -> Row:
    """A run that went well, unless ``given`` says else."""
    blank = dict.fromkeys(columns("runs"), "")
    values: dict[str, Any] = {
        "comparison": "c", "repeat": 0, "run_id": f"{sampler}-{given.get('repeat', 0)}", "sampler": sampler,
        "store": store, "workers": 0, "dataset": "mnist", "nproc": 4, "batch_size": 32, "world_size": 4,
        "samples_per_s": "" if speed is None else speed, "status": "ok", "delivered": 100, "duplicates": 0,
        "missing": 0, "hostname": "here", "cores": 2,
    }  # fmt: skip
    return blank | {name: str(value) for name, value in (values | given).items()}


def turns(sampler: str, store: str, speeds: list[float], **given: Any) -> list[Row]:
    """A run in each turn."""
    return [run_row(sampler, store, speed, repeat=turn, **given) for turn, speed in enumerate(speeds)]


def groups_of(*groups: list[Row]) -> dict[str, list[Row]]:
    """Rows by the name of their configuration."""
    rows = [row for group in groups for row in group]
    names = names_of({key_of_row(row) for row in rows})
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(names[key_of_row(row)], []).append(row)
    return found


def held(copies: float, noise: float = 0.05, mib: float = 0.0) -> dict[str, Any]:
    """The figures of memory."""
    return {
        "copies": copies, "copies_low": copies - noise, "copies_high": copies + noise,
        "duplicate_bytes": int(mib * 2**20),
    }  # fmt: skip

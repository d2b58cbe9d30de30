"""Small frames, worked by hand, for the tests of tables and figures."""

from __future__ import annotations

from typing import Any

import pandas as pd

MACHINE = {
    "hostname": "a",
    "cpu": "x",
    "cores": 2,
    "ram_bytes": 8,
    "kernel": "6",
    "torch": "2.14",
    "accelerate": "1.14",
}


def run(run_id: str, sampler: str, speed: float | None, **values: Any) -> dict[str, Any]:
    """A row of ``runs.csv``, with the columns that matter here."""
    usual = {
        "comparison": None, "repeat": 0, "store": "private", "workers": 0, "framework": "profile", "status": "ok",
        "copies": None, "copies_low": None, "copies_high": None, "delivered": 10, "duplicates": 0, "missing": 0,
    }  # fmt: skip
    return {"run_id": run_id, "sampler": sampler, **usual, **MACHINE, "samples_per_s": speed, **values}


def runs(*rows: dict[str, Any]) -> pd.DataFrame:
    """The rows as a frame typed like that of ``load``."""
    whole = ["repeat", "workers", "delivered", "duplicates", "missing"]
    real = ["samples_per_s", "copies", "copies_low", "copies_high"]
    return pd.DataFrame(rows).astype({
        **dict.fromkeys(whole, "Int64"), **dict.fromkeys(real, "float64"),
        **dict.fromkeys(["comparison", "sampler", "store", "status"], "string"),
    })  # fmt: skip


def memory(*rows: tuple[float, int, str, int | None, int | None, int | None, int | None]) -> pd.DataFrame:
    """Rows of ``memory.csv`` of run ``r``: time, process, role, rank, worker, RSS and PSS in MiB."""
    names = ["t_s", "pid", "role", "rank", "worker", "rss_bytes", "pss_bytes"]
    frame = pd.DataFrame(rows, columns=names).astype(dict.fromkeys(["rank", "worker", *names[5:]], "Int64"))
    frame[names[5:]] *= 2**20
    return frame.assign(run_id="r", node="n")

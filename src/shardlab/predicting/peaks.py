"""The peaks of a run in each of its phases, from the timeline of its memory."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple


class Sample(NamedTuple):
    """A moment of a run: how many processes were known as ranks, the PSS of all, and what they held just before.

    ``spike_bytes`` is how much more than at this moment they held for a while since the one before.
    """

    t_s: float
    ranks: int
    pss_bytes: int
    spike_bytes: int = 0

    @property
    def most_bytes(self) -> int:
        """The most since the moment before."""
        return self.pss_bytes + self.spike_bytes


def samples_of(file: Path, run_id: str) -> list[Sample]:
    """The moments of a run at which PSS was read, from ``memory.csv``: a process that was read twice counts once."""
    at: dict[float, dict[str, dict[str, str]]] = {}
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["run_id"] == run_id and row["pss_bytes"]:
                at.setdefault(float(row["t_s"]), {})[row["pid"]] = row
    return [
        Sample(
            t_s,
            sum(row["role"] == "rank" for row in rows.values()),
            sum(int(row["pss_bytes"]) for row in rows.values()),
            sum(int(row["spike_bytes"] or 0) for row in rows.values()),
        )
        for t_s, rows in sorted(at.items())
    ]


def peaks_of(samples: list[Sample], nproc: int, held_s: float) -> tuple[int, int]:
    """The peaks before all ranks had opened their data path, and from then until they were held; in bytes.

    What was between the last sample before and the first one after they had is of the building. What follows the
    hold is the end of the run: libraries are unloaded, the dataset is gone.
    """
    opened = next((sample.t_s for sample in samples if sample.ranks == nproc), held_s)
    building = [sample.most_bytes for sample in samples if sample.t_s <= opened]
    feeding = [sample.pss_bytes for sample in samples if sample.t_s == opened]
    feeding += [sample.most_bytes for sample in samples if opened < sample.t_s <= held_s]
    return max(building, default=0), max(feeding, default=0)

"""The ranking on a screen of 100 columns, and as one object for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from shardlab.comparing.gates import Gate
from shardlab.comparing.standing import Standing

COLUMNS = (
    "configuration", "copies", "from", "to", "samples/s", "from", "to", "ratio", "stall", "CPU s", "first s", "audit",
)  # fmt: skip


def ranking(standings: Sequence[Standing]) -> Table:
    """A line for each configuration, best first. CPU s is for 1000 samples, ratio against the baseline."""
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for each in standings:
        table.add_row(
            each.name, *map(_two, (each.copies, each.copies_low, each.copies_high)),
            *map(_whole, (each.samples_per_s, each.samples_per_s_low, each.samples_per_s_high)),
            "base" if each.is_baseline else _two(each.ratio),
            "-" if each.stall_ratio is None else f"{each.stall_ratio:.0%}",
            _fine(each.cpu_s_per_1k_samples), _two(each.first_batch_s), audit(each),
        )  # fmt: skip
    return table


def audit(standing: Standing) -> str:
    """What became of the samples: ``ok``, or how many were missing or came twice, or that it failed."""
    if standing.status != "ok":
        return "failed" if standing.status == "failed" else "WRONG"
    if standing.missing:
        return f"-{standing.missing:,}"
    return f"+{standing.duplicates:,}" if standing.duplicates else "ok"


def as_object(
    comparison: str,
    standings: Sequence[Standing],
    said: Sequence[str],
    gates: Sequence[Gate],
    left_out: Sequence[str],
) -> dict[str, Any]:
    """All that was found out, for ``--json``."""
    return {
        "comparison": comparison,
        "configurations": [asdict(each) for each in standings],
        "sentences": list(said),
        "gates": [asdict(gate) for gate in gates],
        "left_out": list(left_out),
    }


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _fine(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"

"""Several configurations of ``shardlab.profile``, run in turn, round by round, each time in fresh processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pairs import argv_of
from shardlab.config import OutputConfig, RunConfig
from shardlab.launch import session
from shardlab.launch.summary import Outcome
from shardlab.plan import resolve

SERVED: dict[str, Any] = {"start_method": "forkserver"}


@dataclass(frozen=True)
class Way:
    """One configuration, as flags. Copies are known only with a control run, which takes as long as a run."""

    flags: dict[str, Any]
    control: bool = False


def in_turn(ways: Sequence[Way], rounds: int) -> Iterator[tuple[Outcome, ...]]:
    """For each round an outcome of each way, so that a slow minute of the machine meets all of them."""
    with tempfile.TemporaryDirectory() as results:
        yield from zip(*(_runs(way, rounds, results) for way in ways), strict=True)


def _runs(way: Way, rounds: int, results: str) -> Iterator[Outcome]:
    """Each run when it is asked for."""
    flags = SERVED | way.flags
    config = resolve(replace(RunConfig(), **flags, repeats=rounds)).config
    output = OutputConfig(results=results, quiet=True, control=way.control)
    return session.run(config, output, [*argv_of(flags), "--quiet"], session.SILENT)


def rate(outcome: Outcome) -> float:
    """Distinct samples over the seconds of the slowest rank."""
    found = outcome.run.measured.samples_per_s
    assert found is not None, outcome.run.measured.reason
    return found


def reads(outcome: Outcome) -> str:
    """Samples fetched in the last epoch, by rank."""
    last = max(report.row.epoch for report in outcome.reports)
    return " ".join(str(report.row.reads) for report in outcome.reports if report.row.epoch == last)

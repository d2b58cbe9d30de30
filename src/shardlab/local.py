"""``shardlab.profile`` and ``shardlab.train`` on ranks that they start themselves."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from shardlab import csvlog
from shardlab.bar import Bar
from shardlab.config import OutputConfig
from shardlab.errors import ExitCode
from shardlab.launch import control, control_run, lonely, session
from shardlab.launch.learned import curve
from shardlab.launch.summary import Outcome
from shardlab.plan import Resolved
from shardlab.records import row
from shardlab.show import console, show
from shardlab.trainconfig import TrainConfig
from shardlab.verdict import not_a_number


def run_local(
    resolved: Resolved, output: OutputConfig, argv: list[str], train: TrainConfig | None = None
) -> int:
    """Measure, show, and say by the exit code whether every sample arrived."""
    request = control.requested()
    if request is not None:
        control_run.run_control(request, resolved.config, output, train)
        return int(ExitCode.OK)
    lonely.refuse_a_lonely_launch(module_of(train))
    csvlog.check_writable(Path(output.results))
    say_notes(resolved)
    config = resolved.config
    outcomes: list[Outcome] = []
    try:
        with Bar(config.warmup + config.epochs, quiet=output.quiet) as bar:
            for outcome in session.run(config, output, argv, bar, train):
                outcomes.append(outcome)
                bar.step_aside()
                show(outcome, console(json=output.json), output.results)
    finally:
        code = finish(outcomes, output)  # of repeats that ended before one failed, too
    return code


def module_of(train: TrainConfig | None) -> str:
    """What ``python -m`` runs."""
    return "shardlab.profile" if train is None else "shardlab.train"


def say_notes(resolved: Resolved) -> None:
    """Flags without effect, before anything runs."""
    for note in resolved.notes:
        print(f"Note: {note}", file=sys.stderr)


def finish(outcomes: list[Outcome], output: OutputConfig) -> int:
    """Print the JSON where it was asked for; the exit code."""
    if output.json and outcomes:
        objects = [as_object(outcome) for outcome in outcomes]
        print(json.dumps(objects if len(objects) > 1 else objects[0]), flush=True)
    return int(ExitCode.AUDIT if any(outcome.findings for outcome in outcomes) else ExitCode.OK)


def as_object(outcome: Outcome) -> dict[str, Any]:
    """The run's row with its ranks' rows in a list; of training, the steps that it took in all as well.

    JSON has no NaN and no infinity: they are None, and ``reason`` says so.
    """
    found: dict[str, Any] = _finite(row(outcome.run), not_a_number(outcome))
    found["ranks"] = [_finite(row(report.row)) for report in outcome.reports]
    if any(report.learned is not None for report in outcome.reports):
        found["steps"] = len(curve(outcome.run.run_id, outcome.reports))
    return found


def _finite(cells: dict[str, Any], why: str | None = None) -> dict[str, Any]:
    """The row with None for each number that is not finite, and ``why`` among its reasons."""
    odd = [name for name, cell in cells.items() if isinstance(cell, float) and not math.isfinite(cell)]
    kept = cells | dict.fromkeys(odd)
    if odd and "reason" in cells:
        reasons = [f"{name}: {why or repr(cells[name])}" for name in odd]
        kept["reason"] = "; ".join(filter(None, [cells["reason"], *reasons]))
    return kept

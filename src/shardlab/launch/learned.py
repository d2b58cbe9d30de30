"""What training came to, over all ranks: the figures of the run and its loss curve."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from shardlab.engine.report import EpochReport, Learned
from shardlab.records import StepRecord


def last_learned(reports: Sequence[EpochReport]) -> Learned | None:
    """What the last epoch came to, as any of its ranks knows it; None where nothing was trained."""
    known = [report for report in reports if report.learned is not None]
    return max(known, key=lambda report: report.row.epoch).learned if known else None


def curve(run_id: str, reports: Sequence[EpochReport]) -> list[StepRecord]:
    """The loss of each step, the mean over the ranks that took it."""
    rows = []
    for epoch in sorted({report.row.epoch for report in reports}):
        learned = [report.learned for report in reports if report.row.epoch == epoch and report.learned]
        for step in range(max((len(each.losses) for each in learned), default=0)):
            losses = [each.losses[step] for each in learned if step < len(each.losses)]
            first = learned[0]
            rows.append(StepRecord(run_id, epoch, first.first_step + step, fmean(losses), first.learning_rate))
    return rows


def training_loss(reports: Sequence[EpochReport]) -> float | None:
    """The mean loss of the last epoch's steps; None where nothing was trained."""
    last = max((report.row.epoch for report in reports), default=None)
    losses = [row.loss for row in curve("", [report for report in reports if report.row.epoch == last])]
    return fmean(losses) if losses else None

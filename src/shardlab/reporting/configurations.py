"""The runs of a report, gathered by configuration, and the configurations by the question that they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from shardlab.analysis import aggregate
from shardlab.records import MACHINE
from shardlab.reporting.words import Row, many, rows_of

QUESTION = ("trains", "dataset", "ranks", "nodes", "compute", "machine")
"""What has to be the same for two configurations to be rivals."""


@dataclass(frozen=True)
class Configuration:
    """What was run, once or more often.

    ``label`` tells it from its rivals, ``where`` is what they have in common, and ``name`` is as much of both as
    tells it from all others of the page. ``figures`` is its row of
    :func:`shardlab.analysis.aggregate.by_configuration`: medians with ``_low`` and ``_high``, ``n``, ``failed``,
    ``audit``. ``runs`` are its rows of ``runs.csv``, the oldest first. ``bounded`` says that some memory could not
    be read, so that its copies are a lower bound. It is a :class:`shardlab.choosing.Candidate`.
    """

    label: str
    name: str
    where: str
    figures: Row
    runs: tuple[Row, ...]
    bounded: bool = False

    @property
    def last(self) -> Row:
        """Its latest run that was measured to the end, or else its latest."""
        ended = [run for run in self.runs if run["status"] in aggregate.ENDED_WELL]
        return ended[-1] if ended else self.runs[-1]

    @property
    def status(self) -> str:
        """``failed`` where any of its runs is, or else ``audit`` where any is."""
        return next((status for status in ("failed", "audit") if self.figures[status]), "ok")

    @property
    def copies(self) -> float | None:
        """Copies of the dataset on the fullest node."""
        return _float(self.figures["copies"])

    @property
    def copies_low(self) -> float | None:
        """Lower end of the interval that a run gives."""
        return _float(self.figures["copies_low"])

    @property
    def copies_high(self) -> float | None:
        """Upper end of it."""
        return _float(self.figures["copies_high"])

    @property
    def samples_per_s(self) -> float | None:
        """Distinct samples per second of the runs that went well."""
        return _float(self.figures["samples_per_s"])


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def configurations(runs: pd.DataFrame, nodes: pd.DataFrame) -> list[Configuration]:
    """One for each configuration and machine; rivals stand together, in the order in which they first ran.

    ``runs`` and ``nodes`` are frames of :func:`shardlab.analysis.load`. Runs of another machine are never
    averaged with those of this one, and runs that were interrupted left out.
    """
    runs = aggregate.without_interrupted(runs)
    asked = runs.assign(
        trains=(runs["framework"].fillna("profile") != "profile"),
        ranks=runs["world_size"].fillna(runs["nproc"]),
        nodes=runs["nnodes"].fillna(1),
        machine=machine_numbers(runs),
    )
    unreadable = set(nodes.loc[nodes["unreadable"].fillna(0) > 0, "run_id"])
    of_all = asked.groupby(list(QUESTION), dropna=False, sort=False)
    found = [each for _, group in of_all for each in _of_one_question(group, asked, unreadable)]
    labels = [each.label for each in found]
    return [
        each if labels.count(each.label) == 1 else replace(each, name=f"{each.label} on {each.where}")
        for each in found
    ]


def _of_one_question(group: pd.DataFrame, asked: pd.DataFrame, unreadable: set[str]) -> list[Configuration]:
    keys = aggregate.differing(group)
    where = _where(rows_of(group)[0], asked)
    table = rows_of(aggregate.by_configuration(group, keys))
    split = [rows for _, rows in group.groupby(keys, dropna=False, sort=False)]
    return [
        Configuration(label, label, where, row, tuple(rows_of(rows)), not unreadable.isdisjoint(rows["run_id"]))
        for label, row, rows in zip(map(aggregate.label, table), table, split, strict=True)
    ]


def _where(run: Row, asked: pd.DataFrame) -> str:
    """What rivals have in common, in words: more of it where the page has more than one of its kind."""
    words = [str(run["dataset"]), many(run["ranks"] or 0, "rank")]
    if (run["nodes"] or 1) > 1:
        words.append(many(run["nodes"], "node"))
    if run["compute"] not in (None, "none"):
        words.append(f"compute {run['compute']}")
    if run["trains"]:
        words.append("in training")
    if asked["machine"].nunique() > 1:
        words.append(f"machine {run['machine']}")
    return ", ".join(words)


def machine_numbers(runs: pd.DataFrame) -> pd.Series[int]:
    """For each run the number of its machine, from 1, as :func:`shardlab.analysis.aggregate.machines` lists them."""
    described = runs.reindex(columns=list(MACHINE))
    return described.groupby(list(MACHINE), dropna=False, sort=False).ngroup() + 1


def by_question(chosen: Sequence[Configuration]) -> list[list[Configuration]]:
    """Those that answer the same question, together."""
    groups: dict[str, list[Configuration]] = {}
    for each in chosen:
        groups.setdefault(each.where, []).append(each)
    return list(groups.values())

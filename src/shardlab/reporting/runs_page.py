"""The page of a results folder: what its runs came to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from shardlab.analysis import Results, against, aggregate
from shardlab.explain import DICTIONARY, entries
from shardlab.intervals import FEWEST
from shardlab.reporting import environment, pictures, run_pictures
from shardlab.reporting.configurations import Configuration, by_question, configurations, machine_numbers
from shardlab.reporting.parts import Commands, Page, Part, Section, Table, Terms, Text
from shardlab.reporting.sentences import verdict
from shardlab.reporting.words import Row, between, cell, listed, many, mib, number, percent, reasons, rows_of

MEANINGS = {
    "copies": "copies", "duplicate MiB": "duplicate", "samples/s": "samples/s", "stall": "stall_ratio",
    "CPU s per 1000": "cpu_s_per_1k_samples", "first batch s": "first_batch_s", "peak PSS MiB": "pss_peak_bytes",
    "delivered": "delivered", "again": "duplicates", "missing": "missing", "order hash": "order_hash",
}  # fmt: skip
"""Columns of the page, and what the dictionary of all columns calls them."""


def page(results: Results, folder: Path, title: str) -> Page:
    """The report on the runs in ``results``; ``folder`` is where their ledgers are.

    Runs that were interrupted are only counted. At least one was not.
    """
    runs = aggregate.without_interrupted(results.runs)
    chosen, studio = configurations(runs, results.nodes), pictures.Studio()
    groups = by_question(chosen)
    copies = (part for group in groups for part in pictures.copies(studio, results, group))
    throughput = (part for group in groups for part in _throughput(studio, runs, group))
    sections = (
        Section("Configurations", (*_warning(runs), *map(_table, groups))),
        Section("Copies on each node", tuple(copies), grid=True),
        Section("Throughput", tuple(throughput), grid=True),
        Section("Wait against compute", tuple(run_pictures.seconds(studio, results, chosen)), grid=True),
        Section("Memory over time", tuple(run_pictures.memory(studio, results, chosen)), grid=True),
        Section("Who got which sample", tuple(run_pictures.ownership(studio, folder, chosen)), grid=True),
        Section("Audit", (_audit(chosen), *_unknown(runs))),
        Section("Environment", tuple(environment.parts(runs))),
        Section("How to make each number again", tuple(_again(chosen))),
    )
    said = verdict(chosen, int(machine_numbers(runs).max()), len(results.runs) - len(runs))
    return Page(title, tuple(said), _made_from(runs), sections)


def _made_from(runs: pd.DataFrame) -> str:
    times = runs["started_at"].dropna()
    when = ""
    if len(times):
        first, last = (f"{time:%Y-%m-%d %H:%M}" for time in (times.min(), times.max()))
        when = f", {first} UTC" if first == last else f", {first} to {last} UTC"
    return f"From {many(len(runs), 'run')} of shardlab{when}. Every sentence is read off the tables below."


def _warning(runs: pd.DataFrame) -> Iterator[Part]:
    warning = environment.several(runs)
    if warning:
        yield Text(warning, loud=True)


def _table(group: Sequence[Configuration]) -> Table:
    head = (
        "configuration", "runs", "audit", "copies", "duplicate MiB", "samples/s", "stall", "CPU s per 1000",
        "first batch s", "peak PSS MiB",
    )  # fmt: skip
    caption = (
        f"{group[0].where}: medians of the runs, in brackets 95 % intervals, of copies as a run has it, of samples/s "
        f"where there are {FEWEST} runs"
    )
    return Table.of(caption, head, map(_cells, group))


def _cells(each: Configuration) -> tuple[str, ...]:
    row = each.figures
    copies = number(row["copies"], 2) + between(row["copies_low"], row["copies_high"], 2)
    return (
        each.label, str(len(each.runs)), _went(row), ("at least " if each.bounded else "") + copies,
        mib(row["duplicate_bytes"]),
        number(row["samples_per_s"]) + between(row["samples_per_s_low"], row["samples_per_s_high"]),
        percent(row["stall_ratio"]), cell(row["cpu_s_per_1k_samples"]), cell(row["first_batch_s"]),
        mib(row["pss_peak_bytes"]),
    )  # fmt: skip


def _went(row: Row) -> str:
    bad = [f"{row[name]} {word}" for name, word in (("failed", "failed"), ("audit", "wrong")) if row[name]]
    return ", ".join(bad) or "ok"


def _throughput(studio: pictures.Studio, runs: pd.DataFrame, group: Sequence[Configuration]) -> Iterator[Part]:
    """The speed of rivals, and the ratios to torch's sampler with private copies, or else to the slowest."""
    yield from pictures.throughput(studio, group)
    known = [each for each in group if each.figures["samples_per_s"] is not None]
    if len(known) < 2:
        return
    base = min(known, key=_how_usual)
    of_group = runs[runs["run_id"].isin({run["run_id"] for each in known for run in each.runs})]
    baseline = {name: base.last[name] for name in aggregate.differing(of_group)}
    frame = against(of_group, baseline)
    yield from pictures.against(studio, frame, f"Ratios of samples/s to {base.label}: {base.where}")


def _how_usual(each: Configuration) -> tuple[bool, int, float]:
    """Torch's sampler with private copies and no other flag first, and of the others the slowest."""
    usual = (each.last["sampler"], each.last["store"]) == ("distributed", "private")
    return not usual, len(each.label) if usual else 0, each.figures["samples_per_s"]


def _audit(chosen: Sequence[Configuration]) -> Table:
    head = ("run", "configuration", "status", "delivered", "distinct", "again", "missing", "steps", "order hash")
    rows = [
        (
            str(run["run_id"]), each.name, str(run["status"]), number(run["delivered"]), number(run["distinct"]),
            number(run["duplicates"]), number(run["missing"]), _steps(run), cell(run["order_hash"]),
        )
        for each in chosen
        for run in each.runs
    ]  # fmt: skip
    return Table.of("What the ranks of each run were given in the last epoch", head, rows)


def _unknown(runs: pd.DataFrame) -> Iterator[Part]:
    """What has no figure, and why, each reason once."""
    told: dict[tuple[str, str], list[str]] = {}
    for run in rows_of(runs):
        for pair in reasons(run["reason"]).items():
            told.setdefault(pair, []).append(str(run["run_id"]))
    if told:
        rows = [
            (column, reason, "all" if len(ids) == len(runs) else ", ".join(ids) if len(ids) < 5 else str(len(ids)))
            for (column, reason), ids in told.items()
        ]
        yield Table.of("What is not known, or went wrong, and why", ("column", "reason", "runs"), rows)


def _steps(run: Row) -> str:
    few, most = run["steps_min"], run["steps_max"]
    return number(most) if few == most else f"{number(few)} to {number(most)}"


def _again(chosen: Sequence[Configuration]) -> Iterator[Part]:
    made: dict[str, list[str]] = {}
    for run in (run for each in chosen for run in each.runs):
        made.setdefault(command_line(run["argv"]), []).append(str(run["run_id"]))
    yield Commands(tuple((line, f"run {listed(runs)}") for line, runs in made.items()))
    yield Text(
        "What the columns of this page mean, from the dictionary of all columns, of which python -m shardlab.profile "
        "--explain NAME prints any. The rows are CSV files, which pandas.read_csv reads."
    )
    known = entries(DICTIONARY.read_text(encoding="utf-8"))
    yield Terms(tuple((shown, known[name][0]) for shown, name in MEANINGS.items() if name in known))


def command_line(argv: str | None) -> str:
    """The command of ``runs.csv`` as one types it, whatever folder the module was started from.

    >>> command_line("/opt/lib/shardlab/profile.py --nproc 2")
    'python -m shardlab.profile --nproc 2'
    """
    if not argv:
        return "the command line was not kept"
    return re.sub(r"^\S*shardlab/(\w+)\.py(?= |$)", r"python -m shardlab.\1", argv)

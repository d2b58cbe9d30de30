"""The screen after a run: tables and the verdict."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from shardlab.config import RunConfig
from shardlab.launch.summary import Outcome
from shardlab.plan import path_plugin
from shardlab.records import RankRecord
from shardlab.verdict import last_rows, verdict
from shardlab.words import many, mib

WIDTH = 100


class Screen(Console):
    """Where nobody reads any more the tables go nowhere: it must not cost the rows, which come after them."""

    def on_broken_pipe(self) -> None:
        """Be quiet from now on, and go on."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


def console(*, json: bool) -> Console:
    """Where tables go: stdout, or stderr where stdout belongs to a machine."""
    out = Screen(file=sys.stderr if json else sys.stdout)
    if not out.file.isatty():  # FORCE_COLOR makes a terminal of anything, and that one has no width
        out.width = WIDTH
    out.width = min(out.width, WIDTH)
    return out


def show(outcome: Outcome, out: Console, results: str) -> None:
    """Header, a row per rank, a line per node, the verdict."""
    out.print(header(outcome), highlight=False, soft_wrap=False)
    for note in notes(outcome):
        out.print(note, highlight=False, markup=False)
    out.print()
    out.print(rank_table(outcome))
    out.print()
    times = time_table(outcome)
    if times is not None:
        out.print(times)
        out.print()
    out.print(node_table(outcome))
    out.print()
    for sentence in verdict(outcome):
        out.print(sentence, highlight=False, markup=False)
    out.print(f"Rows: {results}, run {outcome.run.run_id}", style="dim", highlight=False, markup=False)


def header(outcome: Outcome) -> str:
    """What ran, in two or three lines."""
    config, figures = outcome.run.config, outcome.run.measured
    samples = (
        f"{figures.samples:,} samples" if figures.samples is not None else "samples not counted beforehand"
    )
    path, size = path_plugin(config.sampler), mib(figures.dataset_bytes)
    lines = [
        f"{config.sampler} + {config.store} on {config.dataset} ({samples}, one copy {size} MiB)",
        f"{many(figures.world_size, 'rank')} x batch {config.batch_size}, {_reading(config)}, tail {config.tail}",
        f"Loader that ran: {figures.loader_class}",
    ]
    if outcome.train is not None:
        train = outcome.train
        lines.insert(2, f"{train.framework} trains {train.model} in {train.dtype}, learning rate "
                        f"{train.learning_rate(figures.world_size or 1):g}, accumulation {train.accumulation}")
    if path is not None and path.fact("NOTE"):
        lines.append(f"Note: {path.fact('NOTE')}.")
    return "\n".join(lines)


def _reading(config: RunConfig) -> str:
    """Who helps the ranks read: the readers of a ring are the node's, workers each rank's own."""
    if config.sampler == "ring":
        return f"{many(max(1, config.workers), 'reader')} for all"
    return f"{many(config.workers, 'worker')} each"


def notes(outcome: Outcome) -> list[str]:
    """What the loader of rank 0 says of the last timed epoch, and the bytes of files that each rank opened."""
    last = max((report.row.epoch for report in outcome.reports), default=None)
    reports = [report for report in outcome.reports if report.row.epoch == last]
    lines = [note for report in reports if report.row.rank == 0 for note in report.notes]
    held = [
        f"rank {report.row.rank} {mib(report.held_bytes)} MiB"
        for report in reports
        if report.held_bytes is not None
    ]
    return [*lines, f"Bytes held, of shards opened: {', '.join(held)}."] if held else lines


RANK_COLUMNS = (
    "rank", "reads", "got", "twice", "missed", "steps", "first s", "wait s", "stall", "CPU s", "samples/s",
    "PSS MiB", "anon", "shmem",
)  # fmt: skip
TIME_COLUMNS = ("rank", "wall s", "wait s", "compute s", "comm s", "other s", "explained")


def time_table(outcome: Outcome) -> Table | None:
    """Where the seconds of each rank went in the last epoch of training; None where nothing was trained."""
    table = _table(*TIME_COLUMNS)
    last = max((report.row.epoch for report in outcome.reports), default=None)
    for report in outcome.reports:
        if report.row.epoch == last and report.learned is not None:
            row = report.row
            parts = (report.wall_s, row.wait_s, row.compute_s, row.comm_s, row.other_s)
            table.add_row(str(row.rank), *map(_seconds, parts), f"{report.learned.accounted_ratio:.0%}")
    return table if table.row_count else None


def rank_table(outcome: Outcome) -> Table:
    """One row per rank of the last timed epoch, and one for all: sums, longest times, distinct samples/s."""
    table = _table(*RANK_COLUMNS)
    rows, figures = last_rows(outcome), outcome.run.measured
    for row in rows:
        repeats, steps = _count(row.duplicates), str(row.steps)
        table.add_row(str(row.rank), *_cells([row], row.delivered, repeats, "", steps, row.samples_per_s))
    if rows:
        few, many = min(row.steps for row in rows), max(row.steps for row in rows)
        repeats, missed = _count(figures.duplicates), _count(figures.missing)
        steps = str(many) if few == many else f"{few}-{many}"
        cells = _cells(rows, figures.delivered, repeats, missed, steps, figures.samples_per_s)
        table.add_row("all", *cells, style="bold")
    return table


def _cells(
    rows: list[RankRecord], got: int | None, twice: str, missed: str, steps: str, speed: float | None
) -> list[str]:
    return [
        _count(_sum(row.reads for row in rows)), _count(got), twice, missed, steps,
        _seconds(_most(row.first_batch_s for row in rows)), _seconds(_most(row.wait_s for row in rows)),
        _stall(rows), _seconds(_sum(row.cpu_s for row in rows)), _count(speed),
        mib(_sum(row.pss_bytes for row in rows)), mib(_sum(row.pss_anon_bytes for row in rows)),
        mib(_sum(row.pss_shmem_bytes for row in rows)),
    ]  # fmt: skip


def _stall(rows: list[RankRecord]) -> str:
    """Wait over wait, compute and communication; a dash where nothing computes."""
    wait, compute = sum(row.wait_s for row in rows), sum(row.compute_s or 0.0 for row in rows)
    exchanged = sum(row.comm_s or 0.0 for row in rows)
    return f"{wait / (wait + compute + exchanged):.0%}" if compute else "-"


def node_table(outcome: Outcome) -> Table:
    """One line per node; sizes in MiB."""
    table = _table(
        "node",
        "copies",
        "from",
        "to",
        "one copy MiB",
        "duplicate",
        "in flight",
        "retained",
        "peak PSS",
        "processes",
    )
    for node in outcome.nodes:
        table.add_row(
            node.node[:20], _ratio(node.copies), _ratio(node.copies_low), _ratio(node.copies_high),
            mib(node.dataset_bytes), mib(node.duplicate_bytes), mib(node.inflight_bytes),
            mib(node.retained_bytes), mib(node.pss_peak_bytes), _count(node.processes),
        )  # fmt: skip
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _sum(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if len(known) == len(listed) else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


_ratio = _seconds

"""The screen: a progress bar on stderr while it runs, tables and the verdict after it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from shardlab.engine.progress import Place, ProgressFile
from shardlab.launch.summary import Outcome
from shardlab.plan import path_plugin
from shardlab.records import RankRecord
from shardlab.verdict import last_rows, mib, verdict

WIDTH = 100


class Bar:
    """A progress bar over the phases of a run; nothing where nobody looks."""

    def __init__(self, nproc: int, epochs: int, *, quiet: bool) -> None:
        self.nproc, self.epochs = nproc, epochs
        console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("starting", total=None, detail="")
        self._file: tuple[Path, ProgressFile] | None = None
        self._epoch, self._epoch_began = 0, 0.0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step_aside(self) -> None:
        """Leave the screen to a table; the next phase brings the bar back."""
        self._progress.stop()

    def phase(self, text: str) -> None:
        """Show what is being done; how long it takes is not known yet."""
        self._progress.start()
        self._progress.update(self._task, description=text, total=None, completed=0, detail="")

    def watch(self, run_dir: Path) -> None:
        """Show the slowest rank's place."""
        if self._progress.disable or not (run_dir / "progress").exists():
            return
        if self._file is None or self._file[0] != run_dir:
            self._file = run_dir, ProgressFile(run_dir, self.nproc)
        places = self._file[1].read()
        slowest = min(places, key=lambda place: (place.epoch, place.steps))
        epoch, steps, expected = slowest.epoch, slowest.steps, slowest.expected
        if epoch:
            if epoch != self._epoch:
                self._epoch, self._epoch_began = epoch, time.monotonic()
            detail = f"epoch {epoch}/{self.epochs}, step {steps}" + (f"/{expected}" if expected else "")
            self._progress.update(
                self._task,
                total=self.epochs * expected or None,
                completed=(epoch - 1) * expected + steps,
                detail=detail + _training(places, time.monotonic() - self._epoch_began),
            )


def _training(places: list[Place], seconds: float) -> str:
    """Loss, samples/s over all ranks and the share of the time that they wait; empty where nothing is trained."""
    samples = sum(place.samples for place in places)
    if not samples or seconds <= 0:
        return ""
    loss = sum(place.loss for place in places) / len(places)
    stall = min(1.0, sum(place.wait_s for place in places) / len(places) / seconds)
    return f", loss {loss:.3f}, {samples / seconds:,.0f} samples/s, stall {stall:.0%}"


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
        f"{figures.world_size} ranks x batch {config.batch_size}, {config.workers} workers each, "
        f"tail {config.tail}",
        f"Loader that ran: {figures.loader_class}",
    ]
    if outcome.train is not None:
        train = outcome.train
        lines.insert(2, f"{train.framework} trains {train.model} in {train.dtype}, learning rate "
                        f"{train.learning_rate(figures.world_size or 1):g}, accumulation {train.accumulation}")
    if path is not None and path.fact("NOTE"):
        lines.append(f"Note: {path.fact('NOTE')}.")
    return "\n".join(lines)


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

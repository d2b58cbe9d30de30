"""The screen: a progress bar while it runs, tables after it. All of it on stderr, or nowhere with --quiet."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from shardlab.engine.progress import ProgressFile
from shardlab.launch.summary import Outcome
from shardlab.plan import path_plugin
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
            disable=quiet or not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None, detail="")
        self._file: tuple[Path, ProgressFile] | None = None

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
        slowest = min(self._file[1].read())
        epoch, steps, expected = slowest
        if epoch:
            self._progress.update(
                self._task,
                total=self.epochs * expected or None,
                completed=(epoch - 1) * expected + steps,
                detail=f"epoch {epoch}/{self.epochs}, step {steps}" + (f"/{expected}" if expected else ""),
            )


def console(*, json: bool) -> Console:
    """Where tables go: stdout, or stderr where stdout belongs to a machine."""
    out = Console(file=sys.stderr if json else sys.stdout)
    if not out.is_terminal:
        out.width = WIDTH
    out.width = min(out.width, WIDTH)
    return out


def show(outcome: Outcome, out: Console, results: str) -> None:
    """Header, a row per rank, a line per node, the verdict."""
    out.print(header(outcome), highlight=False, soft_wrap=False)
    out.print(rank_table(outcome))
    out.print(node_table(outcome))
    for sentence in verdict(outcome):
        out.print(sentence, highlight=False, markup=False)
    out.print(f"Rows: {results}, run {outcome.run.run_id}", style="dim", highlight=False, markup=False)


def header(outcome: Outcome) -> str:
    """What ran, in two or three lines."""
    config, figures = outcome.run.config, outcome.run.measured
    samples = (
        f"{figures.samples:,} samples" if figures.samples is not None else "samples not counted beforehand"
    )
    path = path_plugin(config.sampler)
    lines = [
        f"{config.sampler} + {config.store} on {config.dataset} ({samples}, {mib(figures.dataset_bytes)} MiB)",
        f"{figures.world_size} ranks x batch {config.batch_size}, {config.workers} workers each, "
        f"tail {config.tail}",
        f"Loader that ran: {figures.loader_class}",
    ]
    if path is not None and path.fact("NOTE"):
        lines.append(f"Note: {path.fact('NOTE')}.")
    return "\n".join(lines)


def rank_table(outcome: Outcome) -> Table:
    """One row per rank of the last timed epoch."""
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    for name in (
        "rank",
        "reads",
        "got",
        "twice",
        "steps",
        "first s",
        "wait s",
        "other s",
        "CPU s",
        "samples/s",
        "PSS MiB",
        "anon",
        "shmem",
    ):
        table.add_column(name, justify="right")
    for row in last_rows(outcome):
        table.add_row(
            str(row.rank),
            _count(row.reads),
            _count(row.delivered),
            _count(row.duplicates),
            str(row.steps),
            _seconds(row.first_batch_s),
            _seconds(row.wait_s),
            _seconds(row.other_s),
            _seconds(row.cpu_s),
            _count(row.samples_per_s),
            mib(row.pss_bytes),
            mib(row.pss_anon_bytes),
            mib(row.pss_shmem_bytes),
        )
    return table


def node_table(outcome: Outcome) -> Table:
    """One line per node."""
    figures = outcome.run.measured
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    for name in (
        "node",
        "copies",
        "from - to",
        "one copy MiB",
        "duplicate",
        "in flight",
        "retained",
        "processes",
        "samples/s",
        "CPU s/1k",
    ):
        table.add_column(name, justify="left" if name == "node" else "right")
    for node in outcome.nodes:
        interval = "-" if node.copies is None else f"{node.copies_low:.2f} - {node.copies_high:.2f}"
        table.add_row(
            node.node[:20],
            "-" if node.copies is None else f"{node.copies:.2f}",
            interval,
            mib(node.dataset_bytes),
            mib(node.duplicate_bytes),
            mib(node.inflight_bytes),
            mib(node.retained_bytes),
            _count(node.processes),
            _count(figures.samples_per_s),
            _seconds(figures.cpu_s_per_1k_samples),
        )
    return table


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"

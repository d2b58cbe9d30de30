"""The screen during a run: a progress bar on stderr."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from shardlab.measure.progress import ProgressFile, Reached


class Bar:
    """A progress bar over the phases of a run; nothing where nobody looks."""

    def __init__(self, epochs: int, *, quiet: bool) -> None:
        self.epochs = epochs
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
        if self._progress.disable:
            return
        if self._file is None or self._file[0] != run_dir:
            found = ProgressFile.of(run_dir)
            if found is None:
                return
            self._file = run_dir, found
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


def _training(places: list[Reached], seconds: float) -> str:
    """Loss, samples/s over all ranks and the share of the time that they wait; empty where nothing is trained."""
    samples = sum(place.samples for place in places)
    if not samples or seconds <= 0:
        return ""
    loss = sum(place.loss for place in places) / len(places)
    stall = min(1.0, sum(place.wait_s for place in places) / len(places) / seconds)
    return f", loss {loss:.3f}, {samples / seconds:,.0f} samples/s, stall {stall:.0%}"

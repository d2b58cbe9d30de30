"""The runs of a comparison, in turn: a b c, b c a, c a b, so that what slows the machine slows all of them.

``runs.csv`` is all that is remembered. A run counts when its row is there, with the comparison's name and the
number of its turn; so one that was interrupted goes on where it stopped, each run once, whatever ended it.

    comparison 3f9c21ab-20261130T120000      turn 0   turn 1   turn 2
    distributed + private                      ok       ok     (next)
    keyed + shared                             ok     failed      -      a failure is not tried again
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from shardlab import csvlog
from shardlab.comparing.matrix import Key, key_of, names_of
from shardlab.config import OutputConfig, RunConfig, argv_of
from shardlab.dataset import DatasetFacts
from shardlab.errors import Interrupted, RowsLost, ShardlabError, UsageError
from shardlab.launch.rundir import run_folder
from shardlab.launch.session import Measurement, Prefixed, Viewer, checked, sized
from shardlab.measure import kernel
from shardlab.plugins import PACKAGE_DIR
from shardlab.records import MACHINE

Row = Mapping[str, str]
SOFTWARE = ("python", "torch", "accelerate", "numpy")


@dataclass
class Comparison:
    """Configurations and how often each is to run; ``name`` stands in every row."""

    name: str
    configs: Sequence[RunConfig]
    repeats: int
    output: OutputConfig

    def rows(self) -> list[Row]:
        """What has been run, from ``runs.csv``."""
        rows = csvlog.read_rows(Path(self.output.results) / "runs.csv")
        return [row for row in rows if row.get("comparison") == self.name and row["status"] != "interrupted"]

    def to_do(self) -> Iterator[tuple[RunConfig, int]]:
        """Configuration and turn of each run that is still to come, in order."""
        rows = self.rows()
        done = {(key_of_row(row), int(row["repeat"])) for row in rows}
        failed = {key_of_row(row) for row in rows if row["status"] == "failed"}
        for turn in range(self.repeats):
            first = turn % len(self.configs)
            for config in [*self.configs[first:], *self.configs[:first]]:
                key = key_of(config)
                if key not in failed and (key, turn) not in done:
                    yield config, turn

    def run(self, view: Viewer, facts: DatasetFacts) -> None:
        """All that is to come. A configuration that fails leaves a row that says so, and the others go on."""
        due, names = list(self.to_do()), names_of({key_of(config) for config in self.configs})
        measurements = {
            key_of(config): Measurement(config, self.output, argv_of(config), facts=facts, comparison=self.name)
            for config in self.configs
        }
        failed: set[Key] = set()
        for number, (config, turn) in enumerate(due):
            key = key_of(config)
            if key in failed:
                continue
            try:
                with measurements[key].measured(Prefixed(view, f"{number + 1}/{len(due)} {names[key]}"), turn):
                    pass
            except (Interrupted, RowsLost):
                raise
            except ShardlabError:
                failed.add(key)


def fitting(
    configs: Sequence[RunConfig], output: OutputConfig, view: Viewer
) -> tuple[list[RunConfig], list[str], DatasetFacts]:
    """Those that can read such a dataset, why the others cannot, and what the dataset is, sized once for all."""
    with run_folder() as folder:
        facts = sized(configs[0], output, view, folder)
    kept, left_out, names = [], [], names_of({key_of(config) for config in configs})
    for config in configs:
        try:
            checked(facts, config)
            kept.append(config)
        except UsageError as error:
            left_out.append(f"{names[key_of(config)]}: {error}")
    if not kept:
        raise UsageError("no configuration can read such a dataset", left_out[0])
    return kept, left_out, facts


@contextmanager
def alone_in(results: str) -> Iterator[None]:
    """Keep other comparisons out of this folder meanwhile: they would run the same turns, and slow each other."""
    held = os.open(results, os.O_RDONLY)
    try:
        _lock(held, results)
        yield
    finally:
        os.close(held)


def _lock(held: int, results: str) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            "one comparison at a time runs in a results folder", results,
            cure="wait for the other one, or name another folder with --results",
        ) from None  # fmt: skip
    except OSError:
        return  # a file system without locks: better unguarded than not at all


def key_of_row(row: Row) -> Key:
    """As :func:`key_of`, of a row of ``runs.csv``."""
    return row["sampler"], row["store"], row["workers"]


def begin(
    configs: Sequence[RunConfig], repeats: int, output: OutputConfig, *, fresh: bool, across_machines: bool
) -> Comparison:
    """The latest comparison of the same flags and software that did not come to its end, or a new one.

    Raises UsageError where the one to go on with was measured on another machine.
    """
    prints = fingerprint(configs, repeats, output)
    rows = csvlog.read_rows(Path(output.results) / "runs.csv")
    names = [row["comparison"] for row in rows if row.get("comparison", "").startswith(f"{prints}-")]
    if names and not fresh:
        last = Comparison(names[-1], configs, repeats, output)
        if any(last.to_do()):
            if not across_machines:
                refuse_other_machines(last.rows(), kernel.environment())
            return last
    return Comparison(f"{prints}-{datetime.now(UTC):%Y%m%dT%H%M%S}", configs, repeats, output)


def fingerprint(configs: Sequence[RunConfig], repeats: int, output: OutputConfig) -> str:
    """Eight hexadecimal digits that another matrix, other software or another dataset on disk changes."""
    environment = kernel.environment()
    told = [
        [asdict(replace(config, repeats=repeats)) for config in configs],
        [output.control, output.pss_timeline, output.census, os.environ.get("OMP_NUM_THREADS")],
        {name: environment[name] for name in SOFTWARE},
        [_stamp(file) for file in sorted(PACKAGE_DIR.rglob("*.py"))],
        [_stamp(Path(text)) for config in configs for text in _files(config)],
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]


def refuse_other_machines(rows: Sequence[Row], here: Mapping[str, object] | None = None) -> None:
    """Raises UsageError where rows are of several machines, or of another than ``here``."""
    machines = {tuple(row.get(name, "") for name in MACHINE) for row in rows}
    if here is not None:
        machines.add(tuple("" if here[name] is None else str(here[name]) for name in MACHINE))
    if len(machines) < 2:
        return
    first, second = sorted(machines)[:2]
    differs = [f"{n} {a} and {b}" for n, a, b in zip(MACHINE, first, second, strict=True) if a != b]
    raise UsageError(
        "runs that are compared must be of one machine", "; ".join(differs),
        cure="--across-machines compares them all the same, --fresh measures all of them here",
    )  # fmt: skip


def _files(config: RunConfig) -> list[str]:
    """What a configuration names that may be a file: ``file.py:factory``, an array, a folder."""
    return [part for text in (config.sampler, config.dataset) for part in (text, text.rpartition(":")[0]) if part]


def _stamp(path: Path) -> str:
    """Content of a source file, size and time of other files; nothing for what is not there."""
    if not path.exists():
        return ""
    if path.suffix == ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    info = path.stat()
    return f"{info.st_size} {info.st_mtime_ns}"

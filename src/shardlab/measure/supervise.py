"""Starts and ends the monitor and reads what it left: the side of the process that owns the run's folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shardlab.measure.reading import HoldReading

CONFIG_NAME = "monitor.json"
READY_NAME = "monitor.ready"
STOP_NAME = "monitor.stop"
END_NAME = "monitor-end.json"
LOG_NAME = "monitor.log"
READY_LIMIT_S = 10.0
STOP_LIMIT_S = 10.0
_R = TypeVar("_R")


@dataclass(frozen=True)
class MonitorConfig:
    """What the monitor of one node is told.

    ``local_ranks`` are the ranks of this node, by their number in the world. ``launcher_pid`` is None in a
    joined job, where only the ranks and their descendants count. ``parent_pid`` is the process whose death
    ends the monitor; ``clean_run_dir`` has it remove the run's folder then. ``results`` is the folder of
    ``memory.csv``; None writes none. ``store_file`` is RUN_DIR/store.json where it is None.
    ``dataset_files`` are files that the dataset maps or reads itself. ``pss_timeline`` reads PSS of all in every
    sample, ``census`` compares the content of their memory at each hold.
    """

    run_id: str
    node: str
    parent_pid: int
    local_ranks: tuple[int, ...]
    launcher_pid: int | None = None
    results: str | None = None
    store_file: str | None = None
    dataset_files: tuple[str, ...] = ()
    hold_timeout_s: float = 60.0
    clean_run_dir: bool = False
    pss_timeline: bool = False
    census: bool = False


@dataclass(frozen=True)
class MonitorEnd:
    """What ``monitor-end.json`` says. Peaks are of sums over the tree; those while ranks build and while they are fed
    are known where PSS of all was read in every sample.

    PSS is read at once at holds and put together from single readings between them; RSS, in every sample,
    counts a shared page once for each process. CPU time is the monitor's own, that of its start
    apart; ``hold_cpu_s`` is the part of it that was spent while the ranks were held and nothing was timed.
    """

    pss_peak_bytes: int | None
    rss_peak_bytes: int | None
    monitor_cpu_s: float
    startup_cpu_s: float
    hold_cpu_s: float
    samples: int
    reason: str = ""
    feeding_peak_bytes: int | None = None


def start(run_dir: Path, config: MonitorConfig) -> subprocess.Popen[bytes]:
    """Start the monitor and wait until it listens, or has failed. Ctrl-C does not reach its session.

    Errors go to ``RUN_DIR/monitor.log``; a run without a monitor goes on, and its holds say so.
    """
    for name in (READY_NAME, STOP_NAME, END_NAME):
        (run_dir / name).unlink(missing_ok=True)
    write(run_dir / CONFIG_NAME, config)
    # -P: no file of the current folder stands in for a module of the standard library.
    command = [sys.executable, "-P", "-m", "shardlab.measure.monitor", str(run_dir)]
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    with (run_dir / LOG_NAME).open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    deadline = time.monotonic() + READY_LIMIT_S
    while not (run_dir / READY_NAME).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return process


def stop(process: subprocess.Popen[bytes], run_dir: Path) -> MonitorEnd | None:
    """End the monitor and read its account; ``None`` where it died before. Kills it where it does not end."""
    (run_dir / STOP_NAME).touch()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return _read(run_dir / END_NAME, MonitorEnd)


def hold_name(epoch: int) -> str:
    """The file of a hold's reading in the run's folder."""
    return f"hold-{epoch}.json"


def read_hold(run_dir: Path, epoch: int) -> HoldReading | None:
    """The reading of an epoch's hold; ``None`` where there was none."""
    return _read(run_dir / hold_name(epoch), HoldReading)


def write(path: Path, record: Any) -> None:
    """Write a record as JSON; the file is there as a whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.encode(record))
    partial.replace(path)


def _read(path: Path, kind: type[_R]) -> _R | None:
    with suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    return None

"""The rows of a run that ended, appended to the results."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from shardlab import csvlog
from shardlab.config import OutputConfig
from shardlab.engine.job import Job
from shardlab.index import ledger
from shardlab.launch.learned import curve
from shardlab.launch.summary import Outcome, ledger_file


def keep(outcome: Outcome, output: OutputConfig, job: Job) -> None:
    """Append the node's and the run's rows; the ranks have written theirs."""
    results = Path(job.results or output.results)  # resolved at the start: a dataset may change the folder
    csvlog.append(results, "nodes.csv", list(outcome.nodes))
    csvlog.append(results, "training.csv", curve(job.run_id, outcome.reports))
    csvlog.append(results, "runs.csv", [outcome.run])
    if job.train is not None:
        keep_all_ledgers(results / "ledger", job)
    elif output.keep_ledger and outcome.audits:
        keep_ledgers(outcome, results / "ledger", job)


def keep_ledgers(outcome: Outcome, folder: Path, job: Job) -> None:
    """The delivered indices of the last epoch as ``<run_id>-<rank>.npy``."""
    folder.mkdir(parents=True, exist_ok=True)
    last = max(report.row.epoch for report in outcome.reports)
    for report in outcome.reports:
        if report.row.epoch == last:
            kept = ledger.read(ledger_file(job.folder, last, report.row.rank))
            np.save(folder / f"{job.run_id}-{report.row.rank}.npy", kept.indices, allow_pickle=False)


def keep_all_ledgers(folder: Path, job: Job) -> None:
    """Those of every epoch of a training run as ``<run_id>-<rank>-<epoch>.npy``, one that was cut short too.

    What a run was given before it died and what another was given after it went on from a checkpoint make up
    the epoch together.
    """
    for file in sorted(job.folder.glob("ledger-*")):
        if file.suffix:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        _, epoch, rank = file.name.split("-")
        kept = folder / f"{job.run_id}-{rank}-{epoch}.npy"
        partial = kept.with_name(f".{kept.stem}-{os.getpid()}.npy")  # several ranks of a joined run may do this
        np.save(partial, ledger.read(file).indices, allow_pickle=False)
        partial.replace(kept)

"""How far is `copies` from what is known to be there?

Hypothesis: used memory misses the truth by less than NOISE_BYTES_PER_PROCESS for each process of the run, with
workers and without, for every store, so that the interval printed beside `copies` holds the truth.

How to read the answer: each row is one run of a configuration whose number of copies follows from how it was
built. ``error_bytes_per_process`` is (measured - true copies) x dataset bytes / processes; the largest of them
in absolute value is what the constant has to exceed. ``inside`` says whether the interval held the truth.

    python experiments/copies_against_truth.py [--full]
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from publishing import publish
from shardlab.launch.copies import NOISE_BYTES_PER_PROCESS

CASES = [
    ("--sampler distributed --nproc 1", 1),
    ("--sampler distributed --nproc 2", 2),
    ("--sampler distributed --nproc 4", 4),
    ("--sampler accelerate --nproc 4", 4),
    ("--sampler accelerate-shard --nproc 4", 4),
    ("--sampler accelerate-split --nproc 2 --workers 2", 2),
    ("--sampler distributed --nproc 2 --workers 2", 2),
    ("--sampler distributed --nproc 2 --workers 2 --persistent-workers", 2),
    ("--sampler distributed --nproc 2 --workers 2 --worker-start-method forkserver --store shared", 1),
    ("--sampler accelerate --nproc 4 --store reader", 1),
    ("--sampler accelerate --nproc 2 --workers 2 --store shared", 1),
    ("--sampler accelerate-shard --nproc 4 --store mmap", 1),
    ("--sampler distributed --nproc 4 --store inherited", 1),
    ("--sampler distributed --nproc 4 --store shared --dataset synthetic:256MiB:784", 1),
    ("--sampler distributed --nproc 2 --max-steps 7 --workers 1", 2),
]


@dataclass(frozen=True)
class Row:
    """One run. ``true_copies`` is what the configuration holds by construction."""

    flags: str
    repeat: int
    true_copies: int
    copies: float
    copies_low: float
    copies_high: float
    processes: int
    error_bytes_per_process: int
    inside: bool


def main() -> None:
    """Run all cases in turn, so that a slow minute of the machine meets all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="five repeats instead of two")
    rows = list(measure(repeats=5 if parser.parse_args().full else 2))
    publish("copies_against_truth.csv", rows)
    worst = max(abs(row.error_bytes_per_process) for row in rows)
    limit = NOISE_BYTES_PER_PROCESS
    print(f"worst error {worst / 2**20:.2f} MiB per process, the interval allows {limit / 2**20:.2f} MiB")


def measure(repeats: int) -> Iterator[Row]:
    """Every case ``repeats`` times, interleaved."""
    for repeat in range(repeats):
        for flags, truth in CASES:
            row = one(flags, truth, repeat)
            print(
                f"{row.copies:6.3f} of {truth}  {row.error_bytes_per_process / 2**20:+6.2f} MiB/process  {flags}"
            )
            yield row


def one(flags: str, truth: int, repeat: int) -> Row:
    """One run through the command, as a user starts it."""
    with tempfile.TemporaryDirectory() as results:
        command = [
            sys.executable,
            "-m",
            "shardlab.profile",
            *flags.split(),
            "--json",
            "--quiet",
            "--results",
            results,
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        run = json.loads(done.stdout)
        with (Path(results) / "nodes.csv").open() as file:
            processes = int(next(csv.DictReader(file))["processes"])
    error = round((run["copies"] - truth) * run["dataset_bytes"] / processes)
    inside = run["copies_low"] <= truth <= run["copies_high"]
    return Row(
        flags, repeat, truth, run["copies"], run["copies_low"], run["copies_high"], processes, error, inside
    )


if __name__ == "__main__":
    main()

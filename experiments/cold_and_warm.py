"""Where does a rank's time go when its file is cold, and does a loader's own rate foretell the stall?

Three runs tell preparing from fetching (after DS-Analyzer, Mohan et al., PVLDB 2021): *synth* computes on a batch
that is there already, *warm* reads a file that lies in the page cache, *cold* one that does not. Hypothesis: with a
worker beside it, a rank stalls for ``max(0, 1 - R_loader / R_compute)`` of its time, within a tenth, where R_loader
is the rate of the same file without computing and R_compute that of *synth*; without a worker, for the part of
loading in loading and computing; and a mean of local utilisations hides a slow rank that holds up all others.

How to read the answer. ``cold_and_warm.csv``: a row is one case, medians of rounds. ``cache_state`` is
``cold_verified`` where less than 1 % of the file's pages were in the page cache before each run, else
``cold_requested`` (and the row is no cold one); ``warm`` where all were; ``unknown`` where the kernel does not say.
``resident_before_ratio`` and ``_after_`` are what ``mincore`` says, ``read_bytes`` what ``/proc/PID/io`` says that
the rank and its workers fetched from the disk. ``prep_stall_ratio`` = 1 - R_warm / R_synth, ``fetch_stall_ratio`` =
1 - R_cold / R_warm, at the same computing. ``agrees``: predicted and measured stall differ by 0.1 at the most.
``over_50us`` is the verdict of tf.data's rule of thumb, that a wait of more than 50 us is one for the input. A
virtual disk may have a cache of its own, which nobody here can see. ``low`` and ``high`` bound the median rate at
95 %, by bootstrap, and are empty of fewer than five rounds. ``slow_rank.csv``: four ranks, of which one loads twice
as long, each for itself and with a barrier in every step; utilisation is computing over all time. Takes about 4
minutes.

    python experiments/cold_and_warm.py [--full] [--rounds N] [--only TEXT]     (--full: 0 to 4 workers; nine rounds)
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import fresh
from commandline import options
from publishing import publish
from shardlab.measure import pagecache
from slow_rank import utilisations
from stalled import SAMPLE_BYTES, SAMPLES
from stalls import Case, Found, Row, Run, rows_of

ROUNDS, MORE_ROUNDS = 5, 9
PREPARE_US = 250
COMPUTE_MS = (0, 2, 5, 10, 20)  # for a batch, which takes 8 ms to prepare


def main() -> None:
    """Round by round, then the tables."""
    given = options(__doc__, "no worker, one, two and four; nine rounds", ROUNDS)
    rounds = given.rounds or (MORE_ROUNDS if given.full else ROUNDS)
    chosen = [case for case in cases((0, 1, 2, 4) if given.full else (1,)) if given.only in str(case)]
    found: Found = {case: [] for case in chosen}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.random.default_rng(0).integers(0, 256, (SAMPLES, SAMPLE_BYTES), np.uint8))
        for _ in range(rounds):
            for case in chosen:
                found[case].append(run(case, path))
        rows = list(rows_of(found, PREPARE_US / 1e6, path.stat().st_size))
    for row in rows:
        print(line(row))
    publish("cold_and_warm.csv", rows, key="name" if given.only else None)
    if not given.only:
        publish("slow_rank.csv", list(utilisations()))
    picture()


def cases(workers: tuple[int, ...]) -> list[Case]:
    """Computing alone, then the file in both states."""
    synth = [Case("synth", 0, compute) for compute in COMPUTE_MS if compute]
    return synth + [Case(s, n, compute) for n in workers for compute in COMPUTE_MS for s in ("warm", "cold")]


def run(case: Case, path: Path) -> Run:
    """One case in a fresh process, the file brought into its state before."""
    if case.state == "synth":
        return Run(**fresh.measured("stalled.py", "-", 0, 0, case.compute_ms))
    bring = {"warm": pagecache.warm, "cold": pagecache.evict}[case.state]
    bring(path)
    before = resident_ratio(path)
    said = fresh.measured("stalled.py", path, case.workers, PREPARE_US, case.compute_ms)
    return Run(**said, before=before, after=resident_ratio(path))


def resident_ratio(path: Path) -> float | None:
    """The part of the file that lies in the page cache; None where the kernel does not say."""
    resident = pagecache.resident_bytes(path)
    return None if resident is None else resident / path.stat().st_size


def line(row: Row) -> str:
    """A row for the screen."""
    def part(value: float | None) -> str:
        return "   -" if value is None else f"{value:4.0%}"

    return (
        f"{row.name:24} {row.samples_per_s:9,.0f} samples/s  stall {part(row.stall_ratio)} "
        f"foretold {part(row.predicted_stall_ratio)} {row.agrees:3}  prepare {part(row.prep_stall_ratio)} "
        f"fetch {part(row.fetch_stall_ratio)}  {row.cache_state} {part(row.resident_before_ratio)} -> "
        f"{part(row.resident_after_ratio)}, {row.read_bytes / 2**20:.0f} MiB read"
    )


def picture() -> None:
    """The stall by computing: measured points, predicted lines."""
    import figure

    frame = figure.table("cold_and_warm.csv")
    frame = frame[(frame["workers"] == 1) & (frame["compute_s"] > 0)].sort_values("compute_s")
    drawn, (ax,) = figure.panels(1)
    for colour, state in zip(figure.COLOURS, ("warm", "cold"), strict=False):
        of_state = frame[frame["state"] == state]
        milliseconds = of_state["compute_s"] * 1e3
        ax.plot(milliseconds, of_state["predicted_stall_ratio"] * 100, "-", color=colour, label=f"{state}, foretold")
        ax.plot(milliseconds, of_state["stall_ratio"] * 100, "o", color=colour, label=f"{state}, measured")
    ax.set(xlabel="computing on a batch of 32, ms", ylabel="stall, % of a rank's time", ylim=(-3, 100))
    ax.legend()
    figure.save(drawn, "cold_and_warm.svg")


if __name__ == "__main__":
    main()

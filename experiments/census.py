"""How fast is a census, and what does being watched cost a job?

Hypothesis: a census of 4 processes reads, hashes and counts at no less than 0.3 of the speed at which
``process_vm_readv`` alone reads the same pages; and a job that is watched loses less than 3 % of its speed.

How to read the answer: rows of kind ``speed`` are rounds of reading 4 private arrays, bare and in a census, in
turn; ``ratio`` is the census's bytes/s over the bare ones. Rows of kind ``watched`` are steps/s of a job that keeps
every core busy, in short windows in turn: ``shardlab.watch --pid`` goes on in one and is stopped in the next. Rows of
kind ``started`` are the same in windows of 15 s that hold the start of the watch and a census, which a job sees once.
``ratio`` is with over without. The last line of each kind has the median and its 95 % interval.

    python experiments/census.py [--mb N] [--rounds N] [--windows N] [--seconds S]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from commandline import span
from publishing import publish
from shardlab.intervals import Ratio
from shardlab.measure.census.pages import data_mappings, resident
from shardlab.measure.census.reading import Reader
from shardlab.measure.census.result import Subject
from shardlab.measure.census.take import take

PROCESSES = 4
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Row:
    """A round of one kind; ``bare`` and ``with_census`` are bytes/s, or steps/s without the watch and with it."""

    kind: str
    round: int
    bare: float
    with_census: float
    ratio: float
    duplicate_bytes: int | None


def hold(conn: Connection, mb: int) -> None:
    """An array until told to end."""
    kept = np.random.default_rng(0).integers(0, 256, mb << 20, np.uint8)
    conn.send(os.getpid())
    conn.recv()
    assert kept.size


def work(steps: Synchronized[int], over: Synchronized[int]) -> None:
    """Gather and add up batches of rows, as a rank does."""
    data = np.random.default_rng(0).random((1 << 16, 1 << 10), dtype=np.float32)  # 256 MiB
    draw = np.random.default_rng(1)
    while not over.value:
        data[draw.integers(0, len(data), 64)].sum()
        steps.value += 1


def bare_bytes_per_s(pids: list[int]) -> float:
    """Every resident page of data, read and not looked at."""
    page, read, spent = os.sysconf("SC_PAGESIZE"), 0, 0.0
    for pid in pids:
        with Reader(pid, page) as reader, open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
            wanted = [
                pages
                for mapping, _ in data_mappings(pid, ())
                for pages, _ in resident(pagemap.fileno(), mapping, page)
            ]
            began = time.perf_counter()
            read += sum(reader.read(pages) for pages in wanted)
            spent += time.perf_counter() - began
    return read / spent


def speed(mb: int, rounds: int) -> list[Row]:
    """Both, in turn, on the same processes."""
    pipes = []
    for _ in range(PROCESSES):
        near, far = SPAWN.Pipe()
        SPAWN.Process(target=hold, args=(far, mb), daemon=True).start()
        pipes.append(near)
    pids = [pipe.recv() for pipe in pipes]
    rows = []
    for number in range(rounds):
        bare = bare_bytes_per_s(pids)
        census = take([Subject(pid, pid) for pid in pids])
        counted = census.read_bytes / census.wall_s
        rows.append(Row("speed", number, bare, counted, counted / bare, census.duplicate_bytes))
    for pipe in pipes:
        pipe.send(None)
    return rows


class Job:
    """Processes that count their steps, until closed."""

    def __init__(self) -> None:
        self._over = SPAWN.Value("i", 0, lock=False)
        self._counts = [SPAWN.Value("q", 0, lock=False) for _ in range(len(os.sched_getaffinity(0)))]
        self._ranks = [SPAWN.Process(target=work, args=(count, self._over)) for count in self._counts]
        for rank in self._ranks:
            rank.start()
        time.sleep(5)

    def steps_per_s(self, seconds: float) -> float:
        """In the next ``seconds``."""
        began, before = time.perf_counter(), sum(count.value for count in self._counts)
        time.sleep(seconds)
        return (sum(count.value for count in self._counts) - before) / (time.perf_counter() - began)

    def watch(self) -> subprocess.Popen[bytes]:
        """A watch of it."""
        flags = [word for rank in self._ranks for word in ("--pid", str(rank.pid))]
        return subprocess.Popen(
            [sys.executable, "-m", "shardlab.watch", "--quiet", "--results", "none", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def close(self) -> None:
        """End them."""
        self._over.value = 1
        for rank in self._ranks:
            rank.join()


def watched(job: Job, rounds: int, seconds: float) -> Iterator[Row]:
    """With a watch that has begun long ago, and with the same one stopped."""
    watch = job.watch()
    time.sleep(15)
    for number in range(rounds):
        watch.send_signal(signal.SIGSTOP)
        bare = job.steps_per_s(seconds)
        watch.send_signal(signal.SIGCONT)
        with_watch = job.steps_per_s(seconds)
        yield Row("watched", number, bare, with_watch, with_watch / bare, None)
    watch.terminate()
    watch.wait()


def started(job: Job, rounds: int, seconds: float) -> Iterator[Row]:
    """With a watch that is started and takes a census meanwhile, and with none."""
    for number in range(rounds):
        bare = job.steps_per_s(seconds)
        watch = job.watch()
        with_watch = job.steps_per_s(seconds)
        watch.terminate()
        watch.wait()
        yield Row("started", number, bare, with_watch, with_watch / bare, None)


def main() -> None:
    """Both questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=500, help="MiB of each of 4 processes")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--windows", type=int, default=40, help="pairs of windows of the job that is watched")
    parser.add_argument("--seconds", type=float, default=2, help="of each of them")
    options = parser.parse_args()
    rows = speed(options.mb, options.rounds)
    job = Job()
    rows += watched(job, options.windows, options.seconds)
    rows += started(job, max(options.rounds // 2, 1), 15)
    job.close()
    for kind in ("speed", "watched", "started"):
        of = [row for row in rows if row.kind == kind]
        found = Ratio.of([row.with_census for row in of], [row.bare for row in of])
        print(f"{kind}: {found.value:.3f}{span(found.low, found.high, '.3f')} of {of[0].bare:,.0f}")
    publish("census.csv", rows)


if __name__ == "__main__":
    main()

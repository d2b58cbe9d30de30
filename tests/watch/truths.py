"""Processes whose memory is known, because it was made so: ``python truths.py CASE --mb N``.

Prints a line of JSON, {"pids": [...], "families": {pid: pid}, "ranks": {pid: rank}}, when memory has settled, and
ends when its standard input does. The parent of the processes is not among the pids.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing as mp
import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MIB = 1 << 20


def random(mb: int, seed: int = 0) -> Array:
    """Bytes that are like no others."""
    return np.random.default_rng(seed).integers(0, 256, mb * MIB, np.uint8)


CONTENTS: dict[str, Callable[[int], Array]] = {
    "random": random,
    "ones": lambda mb: np.ones(mb * MIB // 8),
    "labels": lambda mb: np.random.default_rng(0).integers(0, 2, mb * MIB // 8).astype(np.float64),
    "pairs": lambda mb: np.repeat(np.random.default_rng(0).integers(0, 9, mb * MIB // 8), 2).astype(np.float32),
    "high": lambda mb: np.random.default_rng(0).integers(0, 1 << 15, mb * MIB // 8) << 48,
}


def on_pages(array: Array, advice: int | None) -> Array:
    """The same in memory of its own with huge pages or without."""
    room = mmap.mmap(-1, max(array.nbytes, 4096), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if advice is not None:
        room.madvise(advice)
    placed = np.frombuffer(room, array.dtype, array.size)
    placed[:] = array
    return placed


def tell(conn: Any, *pids: int) -> None:
    """Ready: say which processes there are, and wait until the other side is through."""
    conn.send([os.getpid(), *pids])
    conn.recv()


def own(conn: Any, content: str, mb: int, advice: int | None, seed: int | None) -> None:
    """An array of its own."""
    array = random(mb, seed) if seed is not None else CONTENTS[content](mb)
    kept = on_pages(array, advice)
    del array
    tell(conn)
    assert kept is not None


def touch(conn: Any, array: Array, rewrite: float) -> None:
    """Read what is inherited, and write the same bytes again into a part of it."""
    array.sum()
    size = int(array.size * rewrite)
    array[:size] = array[:size] ^ 0
    tell(conn)


def attach(conn: Any, name: str) -> None:
    """Read shared memory that somebody else made."""
    block = shared_memory.SharedMemory(name=name)
    array = np.ndarray((block.size,), np.uint8, block.buf)
    array.sum()
    tell(conn)
    del array


def map_file(conn: Any, path: str) -> None:
    """Read a file that is mapped."""
    array = np.load(path, mmap_mode="r")
    array.sum()
    tell(conn)


def rank_with_workers(conn: Any, mb: int) -> None:
    """An array of its own, and two forked workers that read it."""
    kept = on_pages(random(mb), None)
    context = mp.get_context("fork")
    pipes, workers = [], []
    for _ in range(2):
        near, far = context.Pipe()
        worker = context.Process(target=touch, args=(far, kept, 0.0))
        worker.start()
        pipes.append(near)
        workers.append(near.recv()[0])
    tell(conn, *workers)
    for pipe in pipes:
        pipe.send(None)


def run(case: str, mb: int, content: str, advice: int | None) -> None:
    """Make the case, say so, and wait."""
    method = "fork" if case in ("forked", "rewritten", "grouped-by-fork") else "spawn"
    context = mp.get_context(method)
    started: list[tuple[Any, Any]] = []

    def start(target: Any, *args: Any) -> None:
        near, far = context.Pipe()
        process = context.Process(target=target, args=(far, *args))
        process.start()
        started.append((process, near))

    folder = tempfile.TemporaryDirectory()
    block = None
    if case == "private":
        for _ in range(4):
            start(own, content, mb, advice, None)
    elif case == "different":
        for seed in range(4):
            start(own, content, mb, advice, seed)
    elif case in ("forked", "rewritten"):
        array = on_pages(CONTENTS[content](mb), advice)
        for _ in range(4):
            start(touch, array, 0.5 if case == "rewritten" else 0.0)
    elif case in ("shared", "two-share"):
        block = shared_memory.SharedMemory(create=True, size=max(mb * MIB, 4096))
        np.ndarray((mb * MIB,), np.uint8, block.buf)[:] = random(mb)
        for number in range(4):
            if case == "shared" or number < 2:
                start(attach, block.name)
            else:
                start(own, "random", mb, advice, None)
    elif case == "mapped":
        path = str(Path(folder.name) / "array.npy")
        np.save(path, random(mb))
        for _ in range(4):
            start(map_file, path)
    elif case in ("grouped", "grouped-by-fork"):
        for _ in range(2):
            start(rank_with_workers, mb)
    else:
        raise SystemExit(f"no case {case}")
    found = [near.recv() for _, near in started]
    base = os.getpid()
    families = {pid: base if method == "fork" else members[0] for members in found for pid in members}
    ranks = {pid: rank for rank, members in enumerate(found) for pid in members}
    print(json.dumps({"pids": list(ranks), "families": families, "ranks": ranks}), flush=True)
    sys.stdin.read()
    for process, near in started:
        near.send(None)
        process.join()
    if block is not None:
        block.close()
        block.unlink()
    folder.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--content", choices=CONTENTS, default="random")
    parser.add_argument("--pages", choices=["huge", "small"])
    given = parser.parse_args()
    advice = {None: None, "huge": mmap.MADV_HUGEPAGE, "small": mmap.MADV_NOHUGEPAGE}[given.pages]
    run(given.case, given.mb, given.content, advice)

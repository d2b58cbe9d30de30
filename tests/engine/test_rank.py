"""What a rank does before it meets the others."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

from shardlab.engine.rank import wait_for_the_last_fork
from shardlab.world import World


def go(folder: Path, rank: int, pipe: Any) -> None:
    wait_for_the_last_fork(folder, World(rank, 3, rank, 3))
    pipe.send(rank)


def test_no_rank_reaches_for_the_network_before_the_last_one_was_forked(tmp_path: Path) -> None:
    """A thread of the store may hold the C library's resolver lock in the moment of a fork."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    ranks = [context.Process(target=go, args=(tmp_path, rank, theirs)) for rank in range(3)]
    for rank in ranks[:2]:
        rank.start()
    assert not ours.poll(0.3)
    ranks[2].start()
    gone = sorted(ours.recv() for _ in ranks)
    for rank in ranks:
        rank.join()
    assert gone == [0, 1, 2]

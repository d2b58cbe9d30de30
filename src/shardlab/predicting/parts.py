"""The parts that a node's memory is the sum of, how often each is there on it, and how far a reading strays.

::

    bytes = base + ranks * rank + workers * worker + waiting * full
            + data * (once + ranks * per_rank + workers * per_worker) + exchanged

A forked process makes objects its own as it touches them, page by page. Of a page with ``k`` objects, of which the
process reads each with chance ``s`` in each of ``r`` epochs, it holds a copy with chance ``1 - (1 - s)^(k r)``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardlab.launch.copies import NOISE_BYTES_PER_PROCESS
from shardlab.predicting.node import Node

SAMPLING_BYTES = 16 << 20
"""How far the highest of ten samples a second strays from the peak, one standard deviation, whatever the size."""

PARTS = ("base", "rank", "worker", "waiting", "data once", "data per rank", "data per worker")
OBJECTS_PER_PAGE = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 16.0, 22.0, 32.0, 64.0)


class Peak(NamedTuple):
    """The most memory that a node held in one phase of a run, in bytes."""

    node: Node
    pss_bytes: float


class Interval(NamedTuple):
    """A figure in bytes, and the bounds that hold it in 19 of 20 cases."""

    value: float
    low: float
    high: float


def features(node: Node, objects_per_page: float | None) -> NDArray[np.float64]:
    """How often each part is there on a node, shape (parts,). Arrays are not copied by touching them (None)."""
    touched = 0.0 if objects_per_page is None else 1 - (1 - node.share) ** (objects_per_page * node.rounds)
    by_rank, by_worker = 1.0, touched if node.forked_workers else 1.0
    if node.forked_ranks:
        by_rank = 0.0 if node.workers else touched
    data = node.data_bytes
    return np.array([
        1.0, node.ranks, node.workers, node.waiting_bytes,
        data, data * node.ranks * by_rank, data * node.workers * by_worker,
    ])  # fmt: skip


def noise_bytes(node: Node, sampling_bytes: float = SAMPLING_BYTES) -> float:
    """By how much the peak of a node strays, one standard deviation."""
    return math.hypot(node.processes * NOISE_BYTES_PER_PROCESS / 2, sampling_bytes)

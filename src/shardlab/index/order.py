"""The global order of an epoch: where each delivered sample stands, its hash, and what should stand there.

Two ranks, batches of two; the number is the global position::

    step        0       1       2
    rank 0    0  1    4  5    8  9
    rank 1    2  3    6  7   10 11
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardlab.index.mixing import mix, mix2

Layout = Literal["strided", "batches", "blocks"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_MASK = (1 << 64) - 1


def order_hash(positions: NDArray[np.int64], indices: NDArray[np.int64]) -> int:
    """Hash of which sample stands at which global position: the sum of ``mix2(position, index)`` mod 2^64.

    A sum, so the hash of an epoch is :func:`merge` of its ranks' hashes, in any order; a swap of two
    samples changes it. Both arrays have the same length; 0 for none.
    """
    return _sum(mix2(_unsigned(positions), _unsigned(indices)))


def set_hash(indices: NDArray[np.int64]) -> int:
    """Hash of which samples came, how often, in no order: the sum of ``mix(index)`` mod 2^64."""
    return _sum(mix(_unsigned(indices)))


def merge(hashes: Iterable[int]) -> int:
    """The hash of all ranks' samples together, from each rank's hash."""
    return sum(hashes) & _MASK


def hex16(value: int) -> str:
    """A 64-bit number as 16 hexadecimal digits, as it is written in the results.

    >>> hex16(255)
    '00000000000000ff'
    """
    return f"{value & _MASK:016x}"


def places(ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Step and place in its batch of each sample that a rank got.

    ``ends``: int64[steps], number of samples delivered after each step. Returns int64[delivered] twice.

    >>> step, place = places(np.array([2, 2, 3]))
    >>> step.tolist(), place.tolist()
    ([0, 0, 2], [0, 1, 0])
    """
    sizes = np.diff(ends, prepend=0)
    step = np.repeat(np.arange(len(ends), dtype=np.int64), sizes)
    place = np.arange(len(step), dtype=np.int64) - (ends - sizes)[step]
    return step, place


def global_positions(
    ends: NDArray[np.int64], rank: int, world_size: int, batch_size: int
) -> NDArray[np.int64]:
    """Position in the global order of each sample that ``rank`` got: int64[delivered].

    Place j of step s is at ``s * world_size * batch_size + rank * batch_size + j``. A short batch leaves
    its last positions empty, so it moves nothing on later steps or other ranks.
    """
    step, place = places(ends)
    return step * (world_size * batch_size) + rank * batch_size + place


def full_rounds(layout: Layout, samples: int, world_size: int, batch_size: int) -> NDArray[np.int64]:
    """Number of leading steps in which a rank must get a full batch, whatever the tail: int64[world_size].

    ``blocks`` counts each rank's own part, the others the whole: a round is full when all its batches are.
    """
    if layout == "blocks":
        starts = _block_start(samples, np.arange(world_size + 1), world_size)
        return np.diff(starts) // batch_size
    return np.full(world_size, samples // (world_size * batch_size), dtype=np.int64)


def expected_index(
    layout: Layout,
    rank: NDArray[np.int64],
    step: NDArray[np.int64],
    place: NDArray[np.int64],
    *,
    samples: int,
    world_size: int,
    batch_size: int,
) -> NDArray[np.int64]:
    """The index due at ``place`` of a rank's batch in ``step``, unshuffled; holds in full rounds only.

    The three arrays are broadcast. ``samples`` = 12, two ranks, batches of two::

        layout     rank 0               rank 1                  as in
        strided    0 2 | 4 6 | 8 10     1 3 | 5 7 | 9 11        torch DistributedSampler
        batches    0 1 | 4 5 | 8 9      2 3 | 6 7 | 10 11       Accelerate
        blocks     0 1 | 2 3 | 4 5      6 7 | 8 9 | 10 11       a contiguous part for each rank
    """
    nth = step * batch_size + place  # among the rank's own samples
    if layout == "strided":
        return nth * world_size + rank
    if layout == "batches":
        return (step * world_size + rank) * batch_size + place
    return nth + _block_start(samples, rank, world_size)


def due(
    layout: Layout, index: int, *, samples: int, world_size: int, batch_size: int
) -> tuple[int, int, int]:
    """Rank, step and place at which ``index`` is due: the inverse of :func:`expected_index`."""
    if layout == "batches":
        batch, place = divmod(index, batch_size)
        return batch % world_size, batch // world_size, place
    if layout == "strided":
        nth, rank = divmod(index, world_size)
    else:
        rank = ((index + 1) * world_size - 1) // samples  # the last part that starts at or before index
        nth = index - samples * rank // world_size
    return rank, nth // batch_size, nth % batch_size


def _block_start(samples: int, rank: NDArray[np.int64], world_size: int) -> NDArray[np.int64]:
    return samples * rank // world_size


def _unsigned(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    return np.asarray(numbers, dtype=np.int64).view(np.uint64)


def _sum(hashes: NDArray[np.uint64]) -> int:
    return int(np.sum(hashes, dtype=np.uint64))

"""What the readers of a ring read: a dataset with indices in the keyed order, or a stream as it comes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardlab.datapath._keyed import BatchReader, Order
from shardlab.dataset._rows import Rows
from shardlab.index.permutation import key_of
from shardlab.plan import Plan
from shardlab.ring.codec import aligned, data_start, encode, put_description, sizes_of
from shardlab.store import Store
from shardlab.world import World

ROOM = 8  # a slot has room for batches so many times the first one; pages that nobody writes cost nothing
LEAST_PART_BYTES = 1 << 20
QUICK_PART_BYTES = 1 << 18  # some 25 us of gathering
Bytes = NDArray[np.uint8]


class MapSource:
    """A dataset with indices. Goes to a reader process whole, its dataset as a handle where a store has one."""

    def __init__(self, store: Store, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.counter = store.counter
        self.reader = BatchReader(store.raw, store.collate_fn.collate, store.counter.add)
        self._order: Order | None = None
        self._targets: Targets | None = None

    @property
    def is_quick(self) -> bool:
        """Few bytes are copied from memory, at worst from a mapped file that is not read yet."""
        rows = self.reader.rows
        return rows is not None and sum(rows.row_bytes) * self.plan.batch_size <= QUICK_PART_BYTES

    def begin(self, epoch: int, consumed: int, reader: int) -> None:
        """Take up the epoch's order, which is O(1); reads count for this reader as for a worker."""
        self.reader.count = partial(self.counter.add_for, reader)
        self._order = Order.of(self.plan, self.world.world_size, epoch, consumed)
        if self.reader.rows is None:
            seed_random(self.plan.seed, epoch, reader)
        elif self._targets is None:
            self._targets = Targets(self.reader.rows)

    def fill(self, step: int, rank: int, part: Bytes) -> int:
        """Gather rows straight into the part, or read and collate samples and copy the batch there."""
        assert self._order is not None
        indices = self._order.indices(self.world.rank - self.world.local_rank + rank, step)
        if not indices.size:
            return 0
        if self._targets is None:
            encode((self.reader.read(indices), indices), part)
        else:
            leaves, numbers = self._targets.of(part, len(indices))
            self.reader.gather(indices, leaves)
            numbers[:] = indices
        return len(indices)

    def first_batch_bytes(self) -> tuple[int, bool]:
        """Bytes of a full batch's part, and whether all batches are like that."""
        size = self.plan.batch_size
        rows = self.reader.rows
        if rows is not None:
            description, needed = _described(rows, size)
            return data_start(description) + needed, True
        count = min(size, self.plan.samples or 0)
        sample = self.reader.collate([self.reader.dataset[0]]) if count else []
        description, needed = sizes_of((sample, np.zeros(1, np.int64)))
        return data_start(description) + needed * size + len(description) * size, False


class StreamSource:
    """An iterable dataset, read once in its own order; the index of a sample is its place in the stream.

    Several readers need a dataset that declares how it is cut: reader k of K reads ``shard(num_shards=K,
    index=k)``, as ``datasets.IterableDataset`` has it, and fills the steps k, k + K, ... Each part has a tail of
    its own. The j-th sample of part k has the index k + j K, wherever it was in the stream.
    """

    is_quick = False

    def __init__(self, store: Store, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.dataset, self.collate, self.counter = store.raw, store.collate_fn.collate, store.counter
        self.count: Callable[[int], None] = store.counter.add
        self._samples: Iterator[Any] = iter(())
        self._round: list[Any] = []
        self._front: list[Any] = []  # the first round, from which a padded end starts again
        self._step = -1

    def begin(self, epoch: int, consumed: int, reader: int) -> None:
        """Start the stream again; no part of it can be left out."""
        self.count = partial(self.counter.add_for, reader)
        seed_random(self.plan.seed, epoch, reader)
        assert consumed == 0
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        readers = max(1, self.plan.workers)
        part = self.dataset if readers == 1 else self.dataset.shard(num_shards=readers, index=reader)
        self._samples = zip(count(reader, readers), part, strict=False)
        self._front, self._step = [], -1

    def fill(self, step: int, rank: int, part: Bytes) -> int:
        """A rank's part of the round; -1 past the end."""
        if step != self._step:
            self._round, self._step = self._next_round(), step
        size = self.plan.batch_size
        mine = self._round[rank * size : (rank + 1) * size]
        if not self._round:
            return -1
        if mine:
            indices = np.array([place for place, _ in mine], np.int64)
            encode((self.collate([sample for _, sample in mine]), indices), part)
        return len(mine)

    def _next_round(self) -> list[Any]:
        size = self.world.local_world_size * self.plan.batch_size
        found = list(islice(self._samples, size))
        self.count(len(found))
        self._front = self._front or list(found)
        if len(found) == size or not found or self.plan.tail == "keep":
            return found
        if self.plan.tail == "drop":
            return []
        while len(found) < size:
            found += self._front[: size - len(found)]
        return found

    def first_batch_bytes(self) -> tuple[int, bool]:
        """Unknown before it is read: room for large ones."""
        return LEAST_PART_BYTES, False


def seed_random(seed: int, epoch: int, reader: int) -> None:
    """Random numbers that differ between readers and epochs, as a DataLoader's workers have them."""
    number = key_of(seed, epoch) + reader
    random.seed(number)
    torch.manual_seed(number & (1 << 63) - 1)
    np.random.seed(number & (1 << 32) - 1)  # noqa: NPY002  what datasets use


def part_bytes_for(source: MapSource | StreamSource) -> int:
    """How large a rank's part of a slot has to be, head included."""
    first, exact = source.first_batch_bytes()
    return aligned(first) if exact else aligned(max(LEAST_PART_BYTES, first) * ROOM)


class Targets:
    """Where the arrays of a batch of rows go, in each part of a ring; looked up by the part's own object.

    A reader fills the same parts again and again with batches of the same size: their descriptions stay, and
    what is left is one gather for each array.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        # By size, with the bytes of the arrays; two at the most: a full batch and the last one.
        self._descriptions: dict[int, tuple[bytes, int]] = {}
        self._known: dict[int, tuple[Bytes, int, list[Bytes], NDArray[np.int64]]] = {}  # keeps each part

    def of(self, part: Bytes, count: int) -> tuple[list[Bytes], NDArray[np.int64]]:
        """For each leaf (count, row bytes), and int64 (count,) for the indices; the part is described."""
        known = self._known.get(id(part))
        if known is None or known[1] != count:
            known = self._known[id(part)] = (part, count, *self._laid_out(part, count))
        return known[2:]

    def _laid_out(self, part: Bytes, count: int) -> tuple[list[Bytes], NDArray[np.int64]]:
        if count not in self._descriptions:
            self._descriptions[count] = _described(self._rows, count)
        description, needed = self._descriptions[count]
        put_description(description, needed, part)
        offset, leaves = data_start(description), []
        for nbytes in self._rows.row_bytes:
            leaves.append(part[offset : offset + count * nbytes].reshape(count, nbytes))
            offset += aligned(count * nbytes)
        return leaves, part[offset : offset + 8 * count].view(np.int64)


def _described(rows: Rows, count: int) -> tuple[bytes, int]:
    """The description of a gathered batch: that of arrays of the same shapes that take no memory."""
    shapes = rows.shapes(count)
    blanks = [leaf[:1].expand(shape) for leaf, (_, shape) in zip(rows.leaves, shapes, strict=True)]
    return sizes_of((rows.assemble(blanks), np.broadcast_to(np.int64(0), count)))

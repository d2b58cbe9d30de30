"""our dispatcher: one reader per node fills a ring of global batches in shared memory, ranks take views.

With ``--workers K`` a pool of K reads for the whole node; the order is the same whatever K. No batch is copied
to a rank and ranks exchange nothing: each waits, asleep, for its part of the next slot. Unshuffled, 8 samples,
2 ranks, batch 2::

    step      0      1
    rank 0   0 1    4 5      (the reader reads all 8)
    rank 1   2 3    6 7
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from shardlab.collective import gather_bytes
from shardlab.datapath._keyed import Order
from shardlab.datapath._ring_source import MapSource, StreamSource, part_bytes_for
from shardlab.errors import UsageError
from shardlab.plan import Plan
from shardlab.ring.loader import RingLoader
from shardlab.ring.memory import Ring, Shape, create, slots_for
from shardlab.ring.reader import Source, serve
from shardlab.store import Store
from shardlab.world import World

STORES = ("shared", "reader", "private", "inherited", "mmap")
TAILS = ("pad", "drop", "keep")
LAYOUT = "batches"
IGNORES = {
    "prefetch_factor": "the ring has as many slots as its readers need",
    "persistent_workers": "the readers always stay",
    "pin_memory": "batches are views of shared memory",
}
HELD = 4  # batches a rank may hold at once: a loop holds one, a loader that fetches ahead two


def open(store: Store, plan: Plan, world: World) -> RingPath:
    """Local rank 0 makes the ring and starts the readers; the other ranks of the node map it."""
    readers = max(1, plan.workers)
    if store.iterable and readers > 1:
        raise UsageError(
            "--sampler ring reads an iterable dataset with one reader", plan.workers, ["--workers 1"]
        )
    source = (StreamSource if store.iterable else MapSource)(store, plan, world)
    if world.is_node_leader:
        shape = Shape(world.local_world_size, readers, slots_for(readers, HELD), part_bytes_for(source))
        fd = create(shape)
        ring = Ring(fd, shape)
        ring.reset()
        _tell_node(world, msgspec.json.encode((os.getpid(), fd, shape)))
        processes = _start_readers(fd, shape, source, plan)
    else:
        pid, fd, shape = msgspec.json.decode(_tell_node(world, b""), type=tuple[int, int, Shape])
        opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        ring, processes = Ring(opened, shape), []
        os.close(opened)
    return RingPath(RingLoader(ring, world.local_rank, processes), plan, world, stream=store.iterable)


class RingPath:
    """The ring as a data path: epochs, and a place to resume at on any number of ranks."""

    def __init__(self, ring: RingLoader, plan: Plan, world: World, *, stream: bool) -> None:
        self.ring, self.plan, self.world, self.stream = ring, plan, world, stream
        self._epoch = self._consumed = 0

    @property
    def order(self) -> Order:
        """What is left of the epoch."""
        return Order.of(self.plan, self.world.world_size, self._epoch, self._consumed)

    def __len__(self) -> int:
        if self.stream:
            raise TypeError("a stream has no length")
        return self.order.partition.steps(self.world.rank)

    def __iter__(self) -> RingLoader:
        steps = -1 if self.stream else self.order.partition.steps(0)
        if self.plan.max_steps is not None and not self.stream:
            steps = min(steps, self.plan.max_steps)
        mine = steps if self.stream else min(steps, len(self))
        self.ring.prepare(self._epoch, self._consumed, steps, mine)
        return iter(self.ring)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next, from its beginning."""
        self._epoch, self._consumed = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many samples of it all ranks together are through with."""
        if self.stream:
            raise UsageError("the place in a stream cannot be saved", "an iterable dataset")
        consumed = self.order.partition.consumed(self.ring.step)
        return {"epoch": self._epoch, "consumed": consumed, "seed": self.plan.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there, on any number of ranks: O(1), nothing is read again."""
        if state["seed"] != self.plan.seed:
            raise UsageError("the seed must be the one that was saved", self.plan.seed, [state["seed"]])
        self._epoch, self._consumed = state["epoch"], state["consumed"]

    def close(self) -> None:
        """End the readers."""
        self.ring.close()


def _tell_node(world: World, mine: bytes) -> bytes:
    """What local rank 0 of this node says."""
    if world.world_size == 1:
        return mine
    return gather_bytes(mine, to_all=True)[world.rank - world.local_rank]


def _start_readers(fd: int, shape: Shape, source: Source, plan: Plan) -> list[BaseProcess]:
    context: Any = multiprocessing.get_context(plan.worker_start_method)
    processes = [
        context.Process(
            target=serve, args=(os.getpid(), fd, shape, reader, source), name=f"reader-{reader}", daemon=True
        )
        for reader in range(shape.readers)
    ]
    for process in processes:
        process.start()
    return processes

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
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from shardlab.collective import on_all
from shardlab.datapath._keyed import Order
from shardlab.datapath._ring_source import MapSource, StreamSource, part_bytes_for
from shardlab.errors import UsageError
from shardlab.plan import Plan
from shardlab.ring.codec import aligned
from shardlab.ring.crew import Crew
from shardlab.ring.loader import Epoch, RingLoader
from shardlab.ring.memory import Ring, Shape, create, slots_for
from shardlab.ring.reader import Source, serve
from shardlab.shm import Handle, withdraw
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


def open(
    store: Store, plan: Plan, world: World, *, held: int = HELD, slot_bytes: int | None = None
) -> RingPath:
    """Local rank 0 makes the ring and starts the readers; the other ranks of the node map it.

    A rank may hold ``held`` batches at once; ``slot_bytes`` is the room for one batch of one rank where the
    first sample does not tell. What a rank fails with here all of them raise.
    """
    readers = max(1, plan.workers)
    if store.iterable and readers > 1:
        raise UsageError(
            "--sampler ring reads an iterable dataset with one reader", plan.workers, ["--workers 1"]
        )
    if store.iterable and world.world_size != world.local_world_size:
        raise UsageError(
            "--sampler ring reads an iterable dataset on one node", "several nodes, each of which would read it all",
            ["accelerate"],
        )  # fmt: skip
    opened: list[RingLoader] = []

    def lead() -> bytes:
        source = (StreamSource if store.iterable else MapSource)(store, plan, world)
        part_bytes = part_bytes_for(source) if slot_bytes is None else aligned(slot_bytes)
        shape = Shape(world.local_world_size, readers, slots_for(readers, held), part_bytes)
        handle = create(shape)
        ring = Ring(handle, shape)
        ring.reset()
        crew = Crew(ring, handle, _start_readers(handle, shape, source, plan))
        opened.append(RingLoader(ring, world.local_rank, crew))
        return msgspec.json.encode((handle, shape))

    failed = f"rank {world.rank} could not open the ring"
    said = on_all(world.world_size, lead if world.is_node_leader else bytes, failed)
    handle, shape = msgspec.json.decode(said[world.rank - world.local_rank], type=tuple[Handle, Shape])

    def follow() -> bytes:
        if not world.is_node_leader:
            opened.append(RingLoader(Ring(handle, shape), world.local_rank, None))
        return b""

    on_all(world.world_size, follow, failed)
    return RingPath(opened[0], plan, world, stream=store.iterable)


class RingPath:
    """The ring as a data path: epochs, and a place to resume at on any number of ranks."""

    def __init__(self, ring: RingLoader, plan: Plan, world: World, *, stream: bool) -> None:
        self.ring, self.plan, self.world, self.stream = ring, plan, world, stream
        self._epoch = self._consumed = 0
        self._begun = False

    @property
    def order(self) -> Order:
        """What is left of the epoch."""
        return Order.of(self.plan, self.world.world_size, self._epoch, self._consumed)

    def __len__(self) -> int:
        if self.stream:
            raise TypeError("a stream has no length")
        return self.order.partition.steps(self.world.rank)

    def __iter__(self) -> Epoch:
        steps = -1 if self.stream else self.order.partition.steps(0)
        if self.plan.max_steps is not None and not self.stream:
            steps = min(steps, self.plan.max_steps)
        mine = steps if self.stream else min(steps, len(self))
        self._begun = True
        self.ring.prepare(self._epoch, self._consumed, steps, mine)
        return iter(self.ring)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next, from its beginning."""
        self._epoch, self._consumed, self._begun = epoch, 0, False

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many samples of it all ranks together are through with."""
        if self.stream:
            raise UsageError("the place in a stream cannot be saved", "an iterable dataset")
        step = self.ring.step if self._begun else 0
        if self._begun and self.ring.is_through and self.ring.mine == len(self):
            step = self.order.partition.steps(0)  # a rank with fewer steps asked for one more
        consumed = self.order.partition.consumed(step)
        return {"epoch": self._epoch, "consumed": consumed, "seed": self.plan.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there, on any number of ranks: O(1), nothing is read again."""
        if state["seed"] != self.plan.seed:
            raise UsageError("the seed must be the one that was saved", self.plan.seed, [state["seed"]])
        self._epoch, self._consumed, self._begun = state["epoch"], state["consumed"], False

    def close(self) -> None:
        """End the readers."""
        self.ring.close()


def _start_readers(handle: Handle, shape: Shape, source: Source, plan: Plan) -> list[BaseProcess]:
    context: Any = multiprocessing.get_context(plan.worker_start_method)
    processes = [
        context.Process(
            target=serve, args=(handle, shape, reader, source), name=f"reader {reader}", daemon=True
        )
        for reader in range(shape.readers)
    ]
    started: list[BaseProcess] = []
    try:
        for process in processes:
            process.start()
            started.append(process)
    except BaseException:  # a dataset that cannot be sent, no more processes
        withdraw(handle)
        for process in started:
            process.kill()
            process.join()
        raise
    return started

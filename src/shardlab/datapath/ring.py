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
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from shardlab.collective import on_all
from shardlab.datapath._keyed import KeyedPlace
from shardlab.datapath._ring_source import MapSource, StreamSource, part_bytes_for
from shardlab.errors import UsageError
from shardlab.index.place import Followed, Progress
from shardlab.plan import Plan
from shardlab.ring.codec import aligned
from shardlab.ring.crew import Crew
from shardlab.ring.loader import RingLoader
from shardlab.ring.memory import Ring, Shape, create, slots_for
from shardlab.ring.reader import Source, serve
from shardlab.shm import Handle, withdraw
from shardlab.store import Store
from shardlab.world import World

STORES = ("shared", "reader", "private", "inherited", "mmap")
TAILS = ("pad", "drop", "keep")
PLACE = "keyed"  # in an epoch, on any number of ranks; paths of one place go on with each other's
LAYOUT = "batches"
IGNORES = {
    "prefetch_factor": "the ring has as many slots as its readers need",
    "persistent_workers": "the readers always stay",
    "pin_memory": "batches are views of shared memory",
}
QUICK_BYTES = 4 << 20  # a ring of small batches has slots for so much: a rank that wakes takes several
HELD = 4  # batches a rank may hold at once: a loop holds one, a loader that fetches ahead two


def open(
    store: Store, plan: Plan, world: World, *, held: int = HELD, slot_bytes: int | None = None
) -> RingPath:
    """Local rank 0 makes the ring and starts the readers; the other ranks of the node map it.

    A rank may hold ``held`` batches at once; ``slot_bytes`` is the room for one batch of one rank where the
    first sample does not tell. What a rank fails with here all of them raise.
    """
    _refuse_unfit(store, plan, world, held, slot_bytes)
    opened: list[RingLoader] = []

    def lead() -> bytes:
        if not world.is_node_leader:
            return b""
        shape, handle, ring = _led(store, plan, world, held, slot_bytes)
        opened.append(ring)
        return msgspec.json.encode((handle, shape))

    failed = f"rank {world.rank} could not open the ring"
    said = on_all(world.world_size, lead, failed)
    handle, shape = msgspec.json.decode(said[world.rank - world.local_rank], type=tuple[Handle, Shape])

    def follow() -> bytes:
        if not world.is_node_leader:
            opened.append(RingLoader(Ring(handle, shape), world.local_rank, None))
        return b""

    on_all(world.world_size, follow, failed)
    return RingPath(opened[0], plan, world, stream=store.iterable)


def _refuse_unfit(store: Store, plan: Plan, world: World, held: int, slot_bytes: int | None) -> None:
    for name, value in (("held", held), ("slot_bytes", slot_bytes)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1", value)
    if store.iterable and plan.workers > 1 and not hasattr(store.raw, "shard"):
        raise UsageError(
            "--sampler ring reads an iterable dataset with one reader", plan.workers, ["--workers 1"],
            "or a dataset that has shard(num_shards, index): each reader then reads a part of it",
        )  # fmt: skip
    if store.iterable and world.world_size != world.local_world_size:
        raise UsageError(
            "--sampler ring reads an iterable dataset on one node", "several nodes, each of which would read it all",
            ["accelerate"],
        )  # fmt: skip


def _led(
    store: Store, plan: Plan, world: World, held: int, slot_bytes: int | None
) -> tuple[Shape, Handle, RingLoader]:
    """A new ring with its readers running, and this rank's end of it."""
    source = (StreamSource if store.iterable else MapSource)(store, plan, world)
    part_bytes = part_bytes_for(source) if slot_bytes is None else aligned(slot_bytes)
    ranks, readers = world.local_world_size, max(1, plan.workers)
    slots = slots_for(readers, max(held, QUICK_BYTES // (ranks * part_bytes)))
    shape = Shape(ranks, readers, slots, part_bytes)
    handle = create(shape)
    ring = Ring(handle, shape)
    ring.reset()
    crew = Crew(ring, handle, _start_readers(handle, shape, source, plan))
    return shape, handle, RingLoader(ring, world.local_rank, crew)


class RingPath(KeyedPlace):
    """The ring as a data path: epochs, and a place to resume at on any number of ranks."""

    def __init__(self, ring: RingLoader, plan: Plan, world: World, *, stream: bool) -> None:
        super().__init__(plan, world)
        self.ring, self.stream = ring, stream

    def __len__(self) -> int:
        if self.stream:
            raise TypeError("a stream has no length")
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        place = self.bookmark.next
        if self.stream:
            steps, mine, progress = -1, -1, Progress(place, lambda _steps: 0)
        else:
            order = self.order_from(place)
            steps, mine = order.partition.steps(0), order.partition.steps(self.world.rank)
            progress, most = self.progress(order), self.plan.max_steps
            if most is not None and most < steps:
                progress.whole = None  # it stops before the epoch is through
                steps, mine = most, min(mine, most)
        self.ring.prepare(place.epoch, place.start, steps, mine)
        return Followed(iter(self.ring), self.bookmark, progress)

    def state_dict(self) -> dict[str, int]:
        """The place, see above. A stream has none that could be saved."""
        self._refuse_a_stream()
        return super().state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there at the next iteration. Raises UsageError for a state of another order, and for a stream."""
        self._refuse_a_stream()
        super().load_state_dict(state)

    def _refuse_a_stream(self) -> None:
        if self.stream:
            raise UsageError("the place in a stream cannot be saved", "an iterable dataset")

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

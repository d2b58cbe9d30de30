"""For a training script that is written already: one shared copy, and a loader over it.

    import shardlab

    dataset = shardlab.share(lambda: MyDataset(...))                 # was: MyDataset(...)
    loader = shardlab.loader(dataset, batch_size=32)                 # was: DistributedSampler, DataLoader
    for epoch in range(epochs):
        loader.set_epoch(epoch)                                      # was: sampler.set_epoch(epoch)
        for batch in loader: ...

The process group has to be there first where there are several ranks.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, cast

import msgspec
import torch.distributed as dist
from torch.utils.data import IterableDataset

from shardlab import plugins
from shardlab.collective import on_all
from shardlab.config import StartMethod, Tail
from shardlab.errors import UsageError
from shardlab.index.partition import Partition
from shardlab.plan import Plan
from shardlab.store import NoCounter, Store, StoreNote
from shardlab.store._share import Attached, attach_memory
from shardlab.store.shared import build
from shardlab.world import World


def share(source: Callable[[], Any]) -> Any:
    """The dataset that ``source()`` builds, once per node: local rank 0 builds it, the others map its arrays.

    Holds tensors and arrays wherever they lie in the dataset object; a dataset of Python objects is encoded
    sample by sample. Mapped private and writable: an in-place operation copies that page for that rank alone.
    Raises UsageError where there are several ranks and no process group yet, and on every rank what the
    building rank raised.
    """
    world = current_world()
    attached: list[Attached] = []

    def lead() -> bytes:
        return msgspec.json.encode(build(partial(_with_indices, source))) if world.is_node_leader else b""

    def attach() -> bytes:
        attached.append(Attached(note, attach_memory))
        return b""

    built = on_all(world.world_size, lead, f"rank {world.rank} could not build the shared copy")
    note = msgspec.json.decode(built[world.rank - world.local_rank], type=StoreNote)
    on_all(world.world_size, attach, f"rank {world.rank} could not map the shared copy")
    return attached[0]


def loader(
    dataset: Any,
    batch_size: int,
    *,
    sampler: Literal["keyed", "ring"] = "keyed",
    shuffle: bool = True,
    seed: int = 0,
    tail: Tail = "pad",
    uneven_ends: bool = False,
    workers: int = 0,
    worker_start_method: StartMethod = "auto",
    held: int | None = None,
    slot_bytes: int | None = None,
) -> Batches:
    """This rank's batches of ``batch_size`` samples, as ``DataLoader`` collates them.

    ``keyed`` reads in each rank, arrays in one gather a batch; ``ring`` has ``workers`` readers (at least one)
    read for all ranks of the node. ``tail``: see :class:`shardlab.index.partition.Partition`. Under ``keep`` some
    ranks have fewer samples, and a DDP model then waits for them for ever: refused on several ranks unless
    ``uneven_ends`` says that the training loop copes, as one inside ``join()`` does.

    For ``ring``: ``held``, how many batches a rank may hold at once; ``slot_bytes``, the room for one batch of
    one rank, where batches grow to more than eight times what the first sample says.
    """
    if worker_start_method == "auto":
        worker_start_method = cast(StartMethod, multiprocessing.get_context().get_start_method())
    iterable = not _has_indices(dataset)
    plan = Plan(
        None if iterable else len(dataset),
        batch_size,
        tail=tail,
        shuffle=shuffle,
        seed=seed,
        workers=workers,
        worker_start_method=worker_start_method,
    )
    world = current_world()
    if not uneven_ends and tail == "keep" and world.world_size > 1 and not _is_even(plan, world):
        raise UsageError(
            "tail must give all ranks equally many samples in a process group",
            tail,
            ["pad", "drop"],
            "or say uneven_ends=True where the training loop copes with ranks that end early",
        )
    store = Store(dataset, NoCounter(), iterable=iterable)
    room = {"held": held, "slot_bytes": slot_bytes}
    options = {name: value for name, value in room.items() if value is not None}
    if options and sampler != "ring":
        raise UsageError("held and slot_bytes are of the ring", sampler, ["ring"])
    return Batches(plugins.find("datapath")[sampler].load().open(store, plan, world, **options))


class Batches:
    """A data path without the indices: what a training loop iterates.

    A checkpoint has ``state_dict()``, equal on all ranks after the same step. To go on from it, on any number of
    ranks and with any batch size::

        loader.load_state_dict(state)
        for epoch in range(state["epoch"], epochs):
            loader.set_epoch(epoch)
            for batch in loader: ...
    """

    def __init__(self, path: Any) -> None:
        self.path = path

    def __len__(self) -> int:
        """Steps of the epoch under way, or of what comes next: fewer in an epoch that is resumed."""
        return len(self.path)

    def __iter__(self) -> Iterator[Any]:
        return map(_first, iter(self.path))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that comes next: what is left of it, if a state of it was loaded and no batch taken since.

        Any other epoch begins at its front, and so does the same one again. Of an epoch that was over when the
        state was saved nothing is left.
        """
        self.path.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """A few integers: where all ranks together are, whatever was fetched ahead."""
        state: dict[str, int] = self.path.state_dict()
        return state

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there at the next iteration, at once: every remaining sample once, in the order it had.

        Raises UsageError where the dataset's length, seed, shuffle or tail are not those that were saved.
        """
        self.path.load_state_dict(state)

    def close(self) -> None:
        """End readers, where there are any."""
        self.path.close()


def current_world() -> World:
    """This rank's place by the process group; alone where there is none and no launcher."""
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        return World(rank, world_size, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            "several ranks need a process group before they share anything",
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} and none",
            cure="call torch.distributed.init_process_group() (or make the Accelerator) first",
        )
    return World(0, 1, 0, 1)


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _has_indices(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)


def _is_even(plan: Plan, world: World) -> bool:
    """Whether all ranks get equally many samples; nobody knows of a stream."""
    if plan.samples is None:
        return False
    return Partition(plan.samples, world.world_size, plan.batch_size, plan.tail).is_even


def _with_indices(source: Callable[[], Any]) -> Any:
    dataset = source()
    if not _has_indices(dataset) or not hasattr(dataset, "__len__"):
        raise UsageError(
            "a shared copy is made of a dataset with a length and indices",
            type(dataset).__name__,
            cure="give an iterable dataset to shardlab.loader(..., sampler='ring') itself",
        )
    return dataset

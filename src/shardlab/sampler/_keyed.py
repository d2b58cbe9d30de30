"""Order, partition, epoch and place of one rank: what both keyed samplers are."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sized
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from shardlab.config import Tail
from shardlab.errors import UsageError
from shardlab.index.partition import Partition
from shardlab.index.place import TAIL_NUMBERS, Bookmark, Place, refuse_another
from shardlab.world import World, is_joining

FIXED = ("samples", "seed", "shuffle", "tail")
"""What has to be the same where a state is loaded."""


class Keyed:
    """What both samplers are, less how they give out indices."""

    unit: int  # indices in an item

    def __init__(
        self,
        dataset: Sized | int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        tail: Tail = "pad",
        uneven_ends: bool = False,
    ) -> None:
        """``dataset``: anything with a length, or the length.

        ``num_replicas`` and ``rank`` come from the process group, or from the launcher's variables where there
        is none yet. ``batch_size`` is per rank and must be the DataLoader's. ``tail``: see
        ``shardlab.index.partition``. Under ``keep`` some ranks get fewer samples, and a DDP model then waits
        for them for ever: refused in a process group unless ``uneven_ends`` says that the training loop
        copes, as one in ``torch.distributed.algorithms.Join`` does.
        """
        self.num_replicas, self.rank = _rank_of(num_replicas, rank)
        self.partition = Partition(_length_of(dataset), self.num_replicas, batch_size, tail)
        self.shuffle, self.seed, self.uneven_ends = shuffle, seed, uneven_ends
        self.bookmark = Bookmark()
        self.on_begin: Callable[[Partition], None] | None = None  # told what an iteration is about to give
        self.refuse_uneven_ends(self.partition)

    def cut(self, indices: NDArray[np.int64]) -> list[Any]:
        """Indices as they are given out."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The epoch whose order comes next."""
        return self.bookmark.next.epoch

    @property
    def batch_size(self) -> int:
        """Samples per rank and step."""
        return self.partition.batch_size

    @property
    def tail(self) -> Tail:
        """What happens to the last, incomplete round."""
        return self.partition.tail

    @property
    def drop_last(self) -> bool:
        """torch's word for the tail ``drop``."""
        return self.tail == "drop"

    @property
    def num_processes(self) -> int:
        """Accelerate's word for the number of ranks, by which it multiplies ``batch_size``."""
        return self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next, from its beginning unless a state of it was just loaded.

        A training loop may call it at the head of each epoch, of a resumed one too: the epoch of the state goes
        on where it was until an index of it is drawn, any other begins at its front, and so does the same one
        again. ``StatefulDataLoader`` hands its state on when it is iterated, after ``set_epoch``: there the
        epoch of the state holds, and the one after it where the loop over it had ended.
        """
        self.bookmark.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Where the epoch is: the same few integers on every rank after the same number of batches.

        ``consumed`` counts positions of the epoch's order over all ranks. ``drawn`` is 0 between batches. What a
        loader has fetched ahead counts too, as Accelerate's do and any with workers; ``StatefulDataLoader``
        has a state of its own, of what the loop was given.
        """
        return self.state_at(self.bookmark.place())

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there at the next iteration, on any number of ranks, with any batch size: O(1).

        A state from the end of an epoch goes on with the next one; after ``set_epoch`` of the finished one
        an iteration gives nothing. Raises UsageError where samples, seed, shuffle or tail are others.
        """
        place = self.place_in(state)
        if place.start == self.partition.samples:
            self.bookmark.load_over(place)
        else:
            self.bookmark.load(place)

    def state_at(self, place: Place) -> dict[str, int]:
        """A place, and what must fit where it is loaded."""
        return {
            "epoch": place.epoch,
            "consumed": place.start,
            "drawn": place.drawn,
            "samples": self.partition.samples,
            "seed": self.seed,
            "shuffle": int(self.shuffle),
            "tail": TAIL_NUMBERS[self.tail],
            "num_replicas": self.num_replicas,
            "batch_size": self.batch_size,
        }

    def place_in(self, state: dict[str, int]) -> Place:
        """The place that a state names. Raises UsageError where it is of another order."""
        own = self.state_at(self.bookmark.next)
        refuse_another(state, own, FIXED)
        place = Place(state["epoch"], state["consumed"], state.get("drawn", 0))
        if place.drawn and self.unit > 1:
            raise UsageError("a state taken within a batch needs a KeyedSampler", type(self).__name__)
        for name in ("num_replicas", "batch_size") if place.drawn else ():
            if state.get(name, own[name]) != own[name]:
                rule = f"the {name} of a state taken within a batch must be that of the run"
                raise UsageError(rule, state[name], [own[name]])
        return place

    def refuse_uneven_ends(self, part: Partition) -> None:
        """Raise where a rank that ends early would leave the others waiting."""
        in_group = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if in_group and not self.uneven_ends and not part.is_even:
            raise UsageError(
                "tail must give all ranks equally many samples in a process group",
                self.tail,
                ["pad", "drop"],
                "or say uneven_ends=True where the training loop copes with ranks that end early",
            )


def _length_of(dataset: Sized | int) -> int:
    if isinstance(dataset, Sized):
        return len(dataset)
    try:
        return operator.index(dataset)
    except TypeError:
        raise UsageError(
            "a keyed sampler needs a dataset with a length, or the length", type(dataset).__name__
        ) from None


def _rank_of(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Number of ranks and own rank: as given, of the process group, or of the launcher."""
    if num_replicas is None or rank is None:
        found = _found_ranks()
        num_replicas = found[0] if num_replicas is None else num_replicas
        rank = found[1] if rank is None else rank
    if not 0 <= rank < num_replicas:
        raise UsageError(f"rank must lie in [0, num_replicas={num_replicas})", rank)
    return num_replicas, rank


def _found_ranks() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    if is_joining():
        world = World.from_env()
        return world.world_size, world.rank
    raise UsageError(
        "a keyed sampler needs a process group, a launcher's variables, or num_replicas and rank",
        None,
        cure="in a single process give num_replicas=1, rank=0",
    )

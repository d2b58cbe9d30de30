"""What `keyed` and `ring` have in common: the order, the place in it, and how a step's batch of it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.dataset._rows import Rows, rows_of
from shardlab.index.partition import Partition
from shardlab.index.permutation import BLOCK, Permutation, key_of
from shardlab.index.place import TAIL_NUMBERS, Bookmark, Place, Progress, refuse_another
from shardlab.plan import Plan
from shardlab.store import refuse_other_lengths
from shardlab.world import World


@dataclass(frozen=True)
class Order:
    """Who gets which sample in which step: a keyed permutation, cut into global batches.

    Needs no list of indices: a chunk of a rank's is computed when the first of them is asked for.
    """

    partition: Partition
    permutation: Permutation | None
    _chunks: dict[int, tuple[int, NDArray[np.int64]]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, plan: Plan, world_size: int, epoch: int, consumed: int = 0) -> Order:
        """The order of an epoch, the part of it that is left after ``consumed`` samples."""
        assert plan.samples is not None
        partition = Partition(plan.samples, world_size, plan.batch_size, plan.tail, consumed)
        return cls(partition, Permutation(plan.samples, key_of(plan.seed, epoch)) if plan.shuffle else None)

    def indices(self, rank: int, step: int) -> NDArray[np.int64]:
        """The samples of a rank's batch: int64 of shape (batch,), shorter at a kept tail."""
        size = self.partition.batch_size
        first, chunk = self._chunks.get(rank, (step + 1, None))
        at_once = max(1, BLOCK // size)  # a call costs as much as a few hundred indices
        if chunk is None or not first <= step < first + at_once:
            first, chunk = step, self._computed(rank, step, step + at_once)
            self._chunks[rank] = first, chunk
        return chunk[(step - first) * size : (step - first + 1) * size]

    def _computed(self, rank: int, first: int, last: int) -> NDArray[np.int64]:
        positions = self.partition.positions(rank, first, last)
        return positions if self.permutation is None else self.permutation.permute(positions)


class KeyedPlace:
    """The epoch of a loader in the keyed order, and its place in it.

    The same few integers on all ranks after the same step, whatever was fetched ahead. They resume on any number
    of ranks and with any batch size, in O(1); the dataset's length, seed, shuffling and tail have to be the same.
    """

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.bookmark = Bookmark()

    def order_from(self, place: Place) -> Order:
        """What is left of an epoch."""
        return Order.of(self.plan, self.world.world_size, place.epoch, place.start)

    def progress(self, order: Order) -> Progress:
        """Of an iteration that begins now."""
        return Progress(self.bookmark.next, order.partition.consumed, order.partition.samples)

    def __len__(self) -> int:
        """Steps of the epoch under way, or of what comes next: fewer in an epoch that is resumed."""
        return self.order_from(self.bookmark.ahead()).partition.steps(self.world.rank)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that comes next, from its beginning unless a state of it was just loaded.

        See ``shardlab.index.place`` for the rule.
        """
        self.bookmark.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """The epoch, how many samples of it all ranks together are through with, and what that order is."""
        place = self.bookmark.place()
        return {"epoch": place.epoch, "consumed": place.start, **self._fixed}

    @property
    def _fixed(self) -> dict[str, int]:
        """What has to be the same where a state is loaded."""
        assert self.plan.samples is not None
        return {
            "samples": self.plan.samples,
            "seed": self.plan.seed,
            "shuffle": int(self.plan.shuffle),
            "tail": TAIL_NUMBERS[self.plan.tail],
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there at the next iteration. Raises UsageError for a state of another order."""
        refuse_another(state, self.state_dict(), self._fixed)
        self.bookmark.load(Place(state["epoch"], state["consumed"]))


class BatchReader:
    """Reads the samples of a batch: arrays by one gather, anything else sample by sample through a collate."""

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any], count: Callable[[int], None]
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.count = count
        self.rows: Rows | None = rows_of(dataset)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"rows": None}  # they lie in the dataset, which may go as a handle

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.rows = rows_of(self.dataset)

    def read(self, indices: NDArray[np.int64]) -> Any:
        """The batch, read and collated as a stock DataLoader would."""
        self.count(len(indices))
        numbers = indices.tolist()
        if not hasattr(self.dataset, "__getitems__"):
            return self.collate([self.dataset[number] for number in numbers])
        samples = self.dataset.__getitems__(numbers)
        refuse_other_lengths(samples, numbers)
        return self.collate(samples)

    def gather(self, indices: NDArray[np.int64], out: Sequence[NDArray[np.uint8]]) -> None:
        """The rows into ``out``; only where ``rows`` is not None."""
        assert self.rows is not None
        self.count(len(indices))
        self.rows.take(indices, out)

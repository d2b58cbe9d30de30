"""a folder of shards on disk (see shardlab.shard): every rank maps and reads its own, contiguous part.

Unshuffled, 8 samples, 2 ranks, batch 2::

    step      0      1
    rank 0   0 1    2 3
    rank 1   4 5    6 7

Shuffled, a rank's shards come in a new order in each epoch, and the samples of a few shards are mixed; a sample
stays with its rank. See ``_shard_order`` for the order, and for what remains of it on other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Sampler

from shardlab.datapath._shard_order import EpochOrder, Rounds, fingerprint, mixing, window_of
from shardlab.datapath._torch import TorchLoader, dataloader_options
from shardlab.errors import UsageError
from shardlab.index.permutation import key_of
from shardlab.index.place import TAIL_NUMBERS, Followed, Place, Progress, refuse_another
from shardlab.plan import Plan
from shardlab.shards.manifest import Manifest
from shardlab.store import Store
from shardlab.world import World

STORES = ("mmap",)
STORE_REASONS = {
    "private": "its shards are mapped where they lie",
    "inherited": "its shards are mapped where they lie",
    "reader": "every rank reads its own part",
    "shared": "its shards are mapped where they lie",
}
TAILS = ("pad", "drop", "keep")
PLACE = "shards"  # in an epoch, on any number of ranks; paths of one place go on with each other's
LAYOUT = "blocks"
DATASET_KINDS = ("shards",)

MEASURED = 1 << 20  # samples whose mixing is measured


def open(store: Store, plan: Plan, world: World) -> ShardedLoader:
    """A shard at the border of two parts is opened by both ranks; all others by one."""
    manifest = getattr(store.raw, "manifest", None)
    if not isinstance(manifest, Manifest):
        raise UsageError(
            "--sampler sharded must read a folder of shards",
            type(store.raw).__name__,
            cure="write one with: python -m shardlab.shard SOURCE OUT",
        )
    return ShardedLoader(store, plan, world, manifest)


class ShardedLoader(TorchLoader):
    """A DataLoader over the order of this rank; what remains of an epoch goes on on any number of ranks.

    ``pad`` repeats the first sample of a rank's part where others have one more, ``drop`` leaves those out,
    ``keep`` keeps them: ranks differ by one sample at the most.
    """

    def __init__(self, store: Store, plan: Plan, world: World, manifest: Manifest) -> None:
        self.plan, self.world, self.manifest = plan, world, manifest
        self.samples = manifest.samples if plan.samples is None else plan.samples
        self.ends = np.cumsum([shard.samples for shard in manifest.shards], dtype=np.int64)
        self._own_parts = self._parts = Rounds(self.samples, world.world_size, plan.batch_size)
        self.sampler = OrderSampler(world.rank, plan.tail)
        options = dataloader_options(store, plan)
        super().__init__(DataLoader(store.indexed, batch_sampler=self.sampler, **options))

    def parts_of(self, place: Place) -> Rounds:
        """The parts that its epoch began with; a place other than an epoch's front was loaded with them."""
        return self._parts if place.start else self._own_parts

    def order_of(self, place: Place) -> EpochOrder:
        """The global order of its epoch."""
        key = key_of(self.plan.seed, place.epoch) if self.plan.shuffle else None
        return EpochOrder(self.parts_of(place), self.ends, key)

    def deal_from(self, place: Place) -> Rounds:
        """How what is left of the epoch there is dealt to the ranks."""
        return Rounds(self.samples, self.world.world_size, self.plan.batch_size, place.start)

    def __len__(self) -> int:
        return self.deal_from(self.bookmark.ahead()).steps(self.world.rank, self.plan.tail)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        place = self.bookmark.next
        self.sampler.order, self.sampler.deal = self.order_of(place), self.deal_from(place)
        progress = Progress(place, partial(self.sampler.deal.consumed, tail=self.plan.tail), self.samples)
        self._batches = Followed(iter(self.inner), self.bookmark, progress)  # made now: workers start here
        return self

    def _batches_read(self) -> Iterator[NDArray[np.int64]]:
        """The indices of this rank's batches in the iteration that began last, as far as it has come."""
        latest = self.bookmark.running
        if not isinstance(latest, Progress):
            return iter(())
        deal, order = self.deal_from(latest.begin), self.order_of(latest.begin)
        return order.batches(deal, self.world.rank, self.plan.tail, latest.step)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that comes next, from its beginning unless a state of it was just loaded.

        See ``shardlab.index.place`` for the rule.
        """
        self.bookmark.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """The epoch, how much of its order all ranks together are through with, and what that order is."""
        place = self.bookmark.place()
        parts = self.parts_of(self.bookmark.begin_of_place())
        return {
            "epoch": place.epoch,
            "consumed": place.start,
            "parts": parts.ranks,
            "batch_size": parts.batch_size,
            **self._fixed,
        }

    @property
    def _fixed(self) -> dict[str, int]:
        """What has to be the same where a state is loaded."""
        return {
            "samples": self.samples,
            "seed": self.plan.seed,
            "shuffle": int(self.plan.shuffle),
            "tail": TAIL_NUMBERS[self.plan.tail],
            "shards": fingerprint(self.ends),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there, on any number of ranks and with any batch size: nothing is read again."""
        refuse_another(state, self.state_dict(), self._fixed, ("epoch", "consumed", "parts", "batch_size"))
        for name in ("parts", "batch_size"):
            if state[name] < 1:
                raise UsageError(f"the {name} of the state must be at least 1", state[name])
        self.bookmark.load(Place(state["epoch"], state["consumed"]))
        self._parts = Rounds(self.samples, state["parts"], state["batch_size"])

    @property
    def held_bytes(self) -> int:
        """Bytes of the shards that hold what this rank read in the epoch."""
        read = np.zeros(len(self.ends), bool)
        for batch in self._batches_read():
            read[np.searchsorted(self.ends, batch, side="right")] = True
        return sum(shard.bytes for shard, was in zip(self.manifest.shards, read, strict=True) if was)

    def describe(self) -> list[str]:
        """How well what was delivered is shuffled."""
        if not self.plan.shuffle:
            return []
        most = max(1, MEASURED // self.plan.batch_size)
        found = mixing(list(islice(self._batches_read(), most)), self.ends)
        if found is None:
            return []
        text = (
            f"Shuffled over the {found.shards} shards of a rank, in windows of {window_of(self.ends):,} samples: "
            f"{found.distinct:.1f} shards in a batch of {self.plan.batch_size} (perfect: "
            f"{found.ideal_distinct:.1f})"
        )
        if found.same is not None:
            text += (
                f", the next sample from the same shard in {found.same:.1%} (perfect: {found.ideal_same:.1%})"
            )
        return [text]


class OrderSampler(Sampler[list[int]]):
    """The batches of one rank as a DataLoader takes them, lists of indices, of the order that it is given."""

    order: EpochOrder
    deal: Rounds

    def __init__(self, rank: int, tail: str) -> None:
        self.rank, self.tail = rank, tail

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self.order.batches(self.deal, self.rank, self.tail))

    def __len__(self) -> int:
        return self.deal.steps(self.rank, self.tail)

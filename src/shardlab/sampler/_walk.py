"""One iteration of a keyed sampler: chunks of indices computed ahead, and where it is in them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from types import FrameType
from typing import Any, cast

from shardlab.errors import UsageError
from shardlab.index.permutation import BLOCK, Permutation, key_of
from shardlab.index.place import Place
from shardlab.sampler._keyed import Keyed

_FIRST_CHUNK = 1 << 10  # indices; each chunk is twice as long, up to a block: the first index comes at once
_SPLITTERS = ("BatchSamplerShard._iter", "DataLoaderDispatcher._fetch")  # of accelerate.data_loader


class Indices(chain[Any]):
    """What ``iter(sampler)`` gives: at the speed of ``itertools.chain``, and with a state for torchdata."""

    walk: Walk

    def state_dict(self) -> dict[str, int]:
        """As the sampler's, of this iteration."""
        return self.walk.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Begin there, be it at the end of an epoch. Before the first index only."""
        self.walk.loaded = self.walk.sampler.place_in(state)


class Walk:
    """One iteration.

    It takes up the sampler's place when its first item is asked for, not when it is made: a DataLoader with
    workers makes two iterators and uses the second.
    """

    def __init__(self, sampler: Keyed) -> None:
        self.sampler = sampler
        self.loaded: Place | None = None
        self.begin, self.part = Place(), sampler.partition
        self.made = 0  # items in the chunks so far, and indices drawn before
        self.chunk: Iterator[Any] = iter(())
        self.started = self.is_through = False

    def iterator(self) -> Indices:
        """Give out the items, chunk by chunk."""
        indices = cast(Indices, Indices.from_iterable(self._chunks()))
        indices.walk = self
        return indices

    def place(self) -> Place:
        """Where a started iteration is."""
        if self.is_through:
            return Place(self.begin.epoch, self.part.samples)
        part, epoch = self.part, self.begin.epoch
        items = self.made - operator.length_hint(self.chunk)
        size = part.size(self.sampler.rank)
        indices = min(items * self.sampler.unit, size)
        if indices == size:
            return Place(epoch, part.consumed(part.steps(self.sampler.rank)))
        if part.world_size == 1:  # what one rank drew is a prefix of the order, wherever it stops
            return Place(epoch, part.start + indices)
        steps, drawn = divmod(indices, part.batch_size)
        return Place(epoch, part.consumed(steps), drawn)

    def state_dict(self) -> dict[str, int]:
        """The place and what must fit it; where it would begin, if it has not started."""
        if self.started:
            return self.sampler.state_at(self.place())
        return self.sampler.state_at(self.loaded) if self.loaded else self.sampler.state_dict()

    def _chunks(self) -> Iterator[Iterator[Any]]:
        """Iterators over chunks of items; how far the last one is tells the place."""
        sampler = self.sampler
        refuse_a_second_split(sampler)
        begin = self.loaded or sampler.bookmark.next
        part = replace(sampler.partition, start=begin.start)
        sampler.refuse_uneven_ends(part)
        self.begin, self.part, self.made, self.started = begin, part, begin.drawn, True
        if self.loaded and begin.start == part.samples:
            self.is_through = True
            return  # the sampler has gone on to the next epoch
        sampler.bookmark.begin(self)
        if sampler.on_begin is not None:
            sampler.on_begin(part)
        key, skip = key_of(sampler.seed, begin.epoch), begin.drawn
        order = Permutation(part.samples, key) if sampler.shuffle else None
        for first, last in spans(part.steps(sampler.rank), part.batch_size):
            positions = part.positions(sampler.rank, first, last)[skip:]
            items = sampler.cut(positions if order is None else order.permute(positions))
            self.made, skip = self.made + len(items), 0
            self.chunk = iter(items)
            yield self.chunk
        self.is_through = True


def spans(steps: int, batch_size: int) -> Iterator[tuple[int, int]]:
    """First and last step of each chunk."""
    first, size = 0, _FIRST_CHUNK
    while first < steps:
        last = min(steps, first + max(1, size // batch_size))
        yield first, last
        first, size = last, min(2 * size, BLOCK)


def refuse_a_second_split(sampler: Keyed) -> None:
    """Raise where Accelerate is about to split what this sampler gives: ranks would lose most of their part.

    Ints of an unsplit sampler are let through: of ``tail="keep"`` Accelerate makes the batches that keyed has.
    """
    if sampler.num_replicas == 1 and sampler.unit == 1:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_qualname
        if name.startswith(_SPLITTERS):
            raise UsageError(
                f"a {type(sampler).__name__} has split the data already, nothing must split it again",
                name.split(".")[0],
                cure="shardlab.sampler.prepare(accelerator, loader) in place of accelerator.prepare(loader)",
            )
        frame = frame.f_back

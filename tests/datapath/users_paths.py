"""Data paths as a user writes them, outside the package: clean ones, and the same with one fault each.

The fault is on the last rank. Where it has one place, that is place 2 of step 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import default_collate

STEP, PLACE = 1, 2


class Strided:
    """Ranks take turns, sample by sample. Faults override one of the small methods."""

    def __init__(self, store: Any, plan: Any, world: Any) -> None:
        self.dataset, self.plan, self.world = store.dataset, plan, world
        self.share_of = world.rank
        self.epoch = self.done = self.skip = 0

    @property
    def faulty(self) -> bool:
        return bool(self.world.rank == self.world.world_size - 1)

    def order(self) -> list[int]:
        if not self.plan.shuffle:
            return list(range(self.plan.samples))
        source = torch.Generator().manual_seed(1000 * self.plan.seed + self.epoch)
        return list(torch.randperm(self.plan.samples, generator=source).tolist())

    def dealt(self) -> list[int]:
        """The order with the last round filled up, cut off or left as it is."""
        order, ranks = self.order(), self.world.world_size
        if self.plan.tail == "drop":
            return order[: len(order) - len(order) % (ranks * self.plan.batch_size)]
        if self.plan.tail == "pad":
            return (order * ranks)[: -(-len(order) // ranks) * ranks]
        return order

    def share(self) -> list[int]:
        return self.dealt()[self.share_of :: self.world.world_size]

    def batches(self) -> list[list[int]]:
        share, size = self.share(), self.plan.batch_size
        return [share[start : start + size] for start in range(0, len(share), size)]

    def sample(self, index: int, step: int, place: int) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.batches())

    def __iter__(self) -> Iterator[tuple[Any, torch.Tensor]]:
        skip, self.skip = self.skip, 0
        for step, indices in enumerate(self.batches()):
            if step >= skip:
                self.done = step + 1
                samples = [self.sample(index, step, place) for place, index in enumerate(indices)]
                yield default_collate(samples), torch.tensor(indices)

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.done = epoch, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.set_epoch(state["epoch"])
        self.skip = self.done = state["done"]

    def close(self) -> None:
        pass


class Contiguous(Strided):
    """Each rank has a part of its own."""

    def share(self) -> list[int]:
        order, ranks = self.dealt(), self.world.world_size
        return order[len(order) * self.share_of // ranks : len(order) * (self.share_of + 1) // ranks]


class Skips:
    """One sample never comes; those after it move up."""

    def share(self: Any) -> list[int]:
        share = super().share()  # type: ignore[misc]
        if self.faulty:
            del share[STEP * self.plan.batch_size + PLACE]
        return list(share)


class LeavesAHole:
    """One batch lacks a sample of its middle."""

    def batches(self: Any) -> list[list[int]]:
        batches = super().batches()  # type: ignore[misc]
        if self.faulty:
            del batches[STEP][PLACE]
        return list(batches)


class Swaps:
    """Two samples of a rank come in each other's place."""

    def batches(self: Any) -> list[list[int]]:
        batches = super().batches()  # type: ignore[misc]
        if self.faulty:
            a, b = batches[STEP], batches[STEP + 1]
            a[PLACE], b[0] = b[0], a[PLACE]
        return list(batches)


class MixesContent:
    """Under the right index comes the sample before it."""

    def sample(self: Any, index: int, step: int, place: int) -> Any:
        wrong = self.faulty and (step, place) == (STEP, PLACE)
        return super().sample(index - wrong, step, place)  # type: ignore[misc]


class RepeatsAShare:
    """The last rank is given the first rank's share."""

    def share(self: Any) -> list[int]:
        self.share_of = 0 if self.faulty else self.world.rank
        return list(super().share())  # type: ignore[misc]


class LiesInLen:
    """``len`` says one step more than come."""

    def __len__(self: Any) -> int:
        return len(self.batches()) + self.faulty


class EndsEarly:
    """The last step never comes, and ``len`` knows it."""

    def batches(self: Any) -> list[list[int]]:
        batches = super().batches()  # type: ignore[misc]
        return list(batches[:-1] if self.faulty else batches)


class ForgetsItsSecondEpoch:
    """Right at first; later the last rank leaves a sample out."""

    def share(self: Any) -> list[int]:
        share = super().share()  # type: ignore[misc]
        return list(share[:-1] if self.faulty and self.epoch else share)


class LeavesTheDataset:
    """One index is no sample's."""

    def batches(self: Any) -> list[list[int]]:
        batches = super().batches()  # type: ignore[misc]
        if self.faulty:
            batches[STEP][PLACE] = self.plan.samples
        return list(batches)

    def sample(self: Any, index: int, step: int, place: int) -> Any:
        return super().sample(index % self.plan.samples, step, place)  # type: ignore[misc]


class SeedsItself:
    """Each rank shuffles in an order of its own."""

    def order(self: Any) -> list[int]:
        source = torch.Generator().manual_seed(self.world.rank)
        return list(torch.randperm(self.plan.samples, generator=source).tolist())


FAULTS = (
    Skips, LeavesAHole, Swaps, MixesContent, RepeatsAShare, LiesInLen, EndsEarly, LeavesTheDataset,
    ForgetsItsSecondEpoch, SeedsItself,
)  # fmt: skip

for _clean in (Strided, Contiguous):  # StridedSkips, ContiguousSkips, ...
    for _fault in FAULTS:
        _name = _clean.__name__ + _fault.__name__
        globals()[_name] = type(_name, (_fault, _clean), {})

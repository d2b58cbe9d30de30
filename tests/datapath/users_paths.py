"""Data paths as a user writes them, outside the package: two clean ones and the same with one fault each.

The fault sits on the last rank, in its step 1 at place 2, unless the factory says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import default_collate

STEP, PLACE = 1, 2


class Path:
    """Ranks that deal out ``range(n)``, padded, dropped or kept, in strides or in contiguous parts.

    A fault overrides one of the small methods.
    """

    contiguous = False

    def __init__(self, store: Any, plan: Any, world: Any) -> None:
        self.dataset, self.plan, self.world = store.dataset, plan, world
        self.epoch = self.done = self.skip = 0

    @property
    def faulty(self) -> bool:
        return bool(self.world.rank == self.world.world_size - 1)

    def order(self) -> list[int]:
        if not self.plan.shuffle:
            return list(range(self.plan.samples))
        source = torch.Generator().manual_seed(1000 * self.plan.seed + self.epoch)
        return list(torch.randperm(self.plan.samples, generator=source))

    def share(self) -> list[int]:
        order, ranks, tail = [int(i) for i in self.order()], self.world.world_size, self.plan.tail
        if tail == "drop":
            order = order[: len(order) - len(order) % (ranks * self.plan.batch_size)]
        if tail == "pad":
            order = (order * ranks)[: -(-len(order) // ranks) * ranks]
        if self.contiguous:
            starts = [len(order) * r // ranks for r in range(ranks + 1)]
            return order[starts[self.world.rank] : starts[self.world.rank + 1]]
        return order[self.world.rank :: ranks]

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
            if step < skip:
                continue
            self.done = step + 1
            samples = [self.sample(index, step, place) for place, index in enumerate(indices)]
            yield default_collate(samples), torch.tensor(indices)

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.done = epoch, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.set_epoch(state["epoch"])
        self.skip = state["done"]

    def close(self) -> None:
        pass


class Contiguous(Path):
    contiguous = True


strided, contiguous = Path, Contiguous


class _Skips(Path):
    """One sample never comes; those after it move up."""

    def share(self) -> list[int]:
        share = super().share()
        if self.faulty:
            del share[STEP * self.plan.batch_size + PLACE]
        return share


class _ShortBatch(Path):
    """One batch lacks a sample in its middle."""

    def batches(self) -> list[list[int]]:
        batches = super().batches()
        if self.faulty:
            del batches[STEP][PLACE]
        return batches


class _Swaps(Path):
    """Two samples of a rank come in each other's place."""

    def batches(self) -> list[list[int]]:
        batches = super().batches()
        if self.faulty:
            a, b = batches[STEP][PLACE], batches[STEP + 1][0]
            batches[STEP][PLACE], batches[STEP + 1][0] = b, a
        return batches


class _WrongContent(Path):
    """Under the right index comes the sample of its neighbour."""

    def sample(self, index: int, step: int, place: int) -> Any:
        wrong = self.faulty and (step, place) == (STEP, PLACE)
        return self.dataset[index - 1 if wrong else index]


class _RepeatsShard(Path):
    """The last rank is given the share of the first."""

    def share(self) -> list[int]:
        if not self.faulty:
            return super().share()
        world = self.world
        self.world = type(world)(0, world.world_size, 0, world.local_world_size)
        try:
            return super().share()
        finally:
            self.world = world


class _Lies(Path):
    """``len`` says one step more than come."""

    def __len__(self) -> int:
        return super().__len__() + self.faulty


class _OneStepFewer(Path):
    """The last step never comes; ``len`` knows it."""

    def batches(self) -> list[list[int]]:
        return super().batches()[: -1 if self.faulty else None]


class _ForeignIndex(Path):
    """One index is that of no sample."""

    def batches(self) -> list[list[int]]:
        batches = super().batches()
        if self.faulty:
            batches[STEP][PLACE] = self.plan.samples
        return batches

    def sample(self, index: int, step: int, place: int) -> Any:
        return self.dataset[index % self.plan.samples]


class _ForgetsItsEpoch(Path):
    """The shuffle never changes."""

    def set_epoch(self, epoch: int) -> None:
        pass


class _OwnSeed(Path):
    """Each rank shuffles with a seed of its own."""

    def order(self) -> list[int]:
        source = torch.Generator().manual_seed(self.world.rank)
        return list(torch.randperm(self.plan.samples, generator=source))


FAULTS: dict[str, type[Path]] = {
    "skips": _Skips, "short_batch": _ShortBatch, "swaps": _Swaps, "wrong_content": _WrongContent,
    "repeats_shard": _RepeatsShard, "lies": _Lies, "one_step_fewer": _OneStepFewer,
    "foreign_index": _ForeignIndex, "forgets_its_epoch": _ForgetsItsEpoch, "own_seed": _OwnSeed,
}  # fmt: skip

for _name, _fault in FAULTS.items():  # strided_skips, contiguous_skips, ...
    globals()[f"strided_{_name}"] = _fault
    globals()[f"contiguous_{_name}"] = type(f"Contiguous{_fault.__name__}", (_fault, Contiguous), {})

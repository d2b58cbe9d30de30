"""What the data paths that end in a torch ``DataLoader`` have in common."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from shardlab.index.place import Bookmark, Followed, Place, Progress
from shardlab.measure.hold import trim_on_signal
from shardlab.plan import Plan
from shardlab.process import die_with_starter
from shardlab.store import Store


def dataloader_options(store: Store, plan: Plan) -> dict[str, Any]:
    """The ``DataLoader`` arguments that follow from the flags; batches come as ``(batch, indices)``."""
    options: dict[str, Any] = {
        "num_workers": plan.workers,
        "pin_memory": plan.pin_memory and plan.device != "cpu",
        "collate_fn": store.collate_fn,
    }
    if plan.workers:
        options |= {
            "prefetch_factor": plan.prefetch_factor,
            "persistent_workers": plan.persistent_workers,
            "multiprocessing_context": plan.worker_start_method,
            "worker_init_fn": start_worker,
        }
    return options


def start_worker(_worker: int) -> None:
    """What a worker process does first: end with its rank, leave Ctrl-C to it, give memory back when told."""
    die_with_starter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trim_on_signal()


def generator(plan: Plan) -> torch.Generator:
    """The source of a shuffle's randomness, the same on every rank."""
    return torch.Generator().manual_seed(plan.seed)


class TorchLoader:
    """A torch or Accelerate loader over ``store.indexed``, with an epoch and a place to resume at.

    Resuming reads and drops what was delivered before: O(steps), as upstream's own skipping does, and right
    for dispatching loaders too, where upstream's skips too few.
    """

    def __init__(self, inner: DataLoader[Any], set_epoch: Callable[[int], None] | None = None) -> None:
        self.inner = inner
        self.bookmark = Bookmark()  # its positions are steps here
        self._set_epoch = set_epoch or (lambda _epoch: None)
        self._batches: Iterator[tuple[Any, Any]] = iter(())

    @property
    def loader_class(self) -> type:
        """The class that really runs; ``__class__`` may say otherwise."""
        return type(self.inner)

    def __len__(self) -> int:
        """Steps of the epoch under way, or of what comes next: fewer in an epoch that is resumed."""
        return max(0, len(self.inner) - self.bookmark.ahead().start)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        place = self.bookmark.next
        self._batches = iter(self.inner)  # made now: workers start here
        for _ in range(place.start):
            next(self, None)
        progress = Progress(place, lambda steps: place.start + steps)
        self._batches = Followed(self._batches, self.bookmark, progress)
        return self

    def __next__(self) -> tuple[Any, Any]:
        return next(self._batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that comes next, from its beginning unless a state of it was just loaded.

        What is left of the one before ends here, workers too. See ``shardlab.index.place`` for the rule.
        """
        self._batches = iter(())
        self.bookmark.set_epoch(epoch)
        self._set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Epoch, and steps of it that were delivered."""
        place = self.bookmark.place()
        return {"epoch": place.epoch, "step": place.start}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after ``step`` steps of ``epoch``, on as many ranks as before."""
        self.set_epoch(state["epoch"])
        self.bookmark.load(Place(state["epoch"], state["step"]))

    def close(self) -> None:
        """End workers that persist between epochs."""
        iterator = getattr(self.inner, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()

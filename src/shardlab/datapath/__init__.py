"""How a batch reaches a rank: one file per ``--sampler``.

A data path is a function ``open(store, plan, world) -> Loader``. A user's own is any callable with that
signature, named as ``package.module:factory``. Module-level literals say what fits it:

``STORES``         stores it can read from, the default first
``TAILS``          what it can do with the last, incomplete round
``LAYOUT``         who gets which index when nothing is shuffled (see ``shardlab.index.order``)
``IGNORES``        flags without effect on it, each with the reason
``STORE_REASONS``  why a store does not fit
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from shardlab.datapath._torch import TorchLoader, dataloader_options

__all__ = ["Loader", "TorchLoader", "dataloader_options"]


class Loader(Protocol):
    """What a rank iterates: once for each epoch.

    Yields ``(batch, indices)``: the batch as the training step takes it, and the int64 index in the dataset
    of each of its samples, shape (batch,). A loader without ``__len__`` has no length that could be checked.
    It may have ``describe() -> list[str]``, lines on the epoch that was read, and ``held_bytes``, the bytes of
    files that it opened; both are printed.
    """

    def __iter__(self) -> Iterator[tuple[Any, Any]]: ...

    def set_epoch(self, epoch: int) -> None:
        """Called before each epoch, a resumed one too; the order depends on it.

        The epoch of a loaded state keeps its place until the first batch is taken, any other begins at its front,
        and so does the same one again (see ``shardlab.index.place``).
        """

    def state_dict(self) -> dict[str, int]:
        """Where the rank is, as a few integers."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there at the next iteration."""

    def close(self) -> None:
        """Give back what it holds: workers, maps, descriptors."""

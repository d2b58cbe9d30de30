"""only the rank that reads holds bytes, the others a stand-in of the same length; for one reader."""

from __future__ import annotations

from typing import Any

import torch

from shardlab.dataset import blank_sample
from shardlab.store._share import NodeShare

READING_RANK = 0


def open(share: NodeShare) -> Any:
    """The dataset on the reading rank, and its length on the others."""
    if share.world.rank == READING_RANK:
        return share.source()
    return Absent(share.samples or 0, share.sample)


class Absent(torch.utils.data.Dataset[Any]):
    """As long as the dataset, of blank samples made when asked for.

    A dispatching loader never uses what these ranks read, but with workers it does read ahead on them.
    """

    def __init__(self, samples: int, sample: Any) -> None:
        self.samples = samples
        self.sample = sample

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        return blank_sample(self.sample)

"""a copy in every rank: each builds the dataset for itself, as a training script does."""

from __future__ import annotations

from typing import Any

from shardlab.store._share import NodeShare


def open(share: NodeShare) -> Any:
    """The dataset, built in this rank."""
    return share.source()

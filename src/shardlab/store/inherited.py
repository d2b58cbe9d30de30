"""built once in the launcher, ranks forked from it: one copy of arrays, more of Python objects."""

from __future__ import annotations

from typing import Any

from shardlab.store._share import NodeShare

BUILDS_IN_LAUNCHER = True


def open(share: NodeShare) -> Any:
    """The launcher's own dataset object, in pages shared with it until one side writes."""
    assert share.inherited is not None, "the launcher builds the dataset before it forks the ranks"
    return share.inherited

"""one copy per node, in a memory file that all its ranks and workers map."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from numpy import uint8
from numpy.typing import NDArray

from shardlab.shm import MemoryFile
from shardlab.store._pack import pack
from shardlab.store._share import Attached, NodeShare, StoreNote, attach_memory, build_once, put_skeleton


def open(share: NodeShare) -> Any:
    """The node's one copy, built by its local rank 0; the other ranks never load the source."""
    return Attached(build_once(share, lambda: build(share.source)), attach_memory)


def build(source: Callable[[], Any]) -> StoreNote:
    """Put what ``source()`` builds into a memory file of this process. Raises RunFailed out of memory."""
    files: list[MemoryFile] = []

    def allocate(nbytes: int) -> NDArray[uint8]:
        files.append(MemoryFile("dataset", nbytes))
        return files[0].buffer

    packed = pack(source(), allocate)
    gc.collect()  # the private copy that was packed goes before the ranks are measured
    return StoreNote(bytes=packed.nbytes, memfd=files[0].seal(), skeleton=put_skeleton(packed))

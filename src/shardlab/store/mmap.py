"""one copy per node, the page cache of a file that all its ranks map."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy import uint8
from numpy.typing import NDArray

from shardlab.errors import RunFailed
from shardlab.measure import pagecache
from shardlab.store._pack import pack
from shardlab.store._share import Attached, NodeShare, StoreNote, attach_file, build_once, put_skeleton


def open(share: NodeShare) -> Any:
    """A dataset that lies in files is mapped where it lies; any other is first written to a file."""
    if share.mapped is not None:
        build_once(share, lambda: StoreNote(files=share.files, warm_ratio=_warm(share.files)))
        return share.mapped()
    return Attached(build_once(share, lambda: _build(share)), attach_file)


def _build(share: NodeShare) -> StoreNote:
    path = share.run_dir / "store.bin"

    def allocate(nbytes: int) -> NDArray[uint8]:
        return _file_of(path, nbytes)

    packed = pack(share.source(), allocate)
    gc.collect()
    files = (str(path),)
    return StoreNote(packed.nbytes, files=files, skeleton=put_skeleton(packed), warm_ratio=_warm(files))


def _warm(files: Sequence[str]) -> float | None:
    """Read the files once, so that a run measures memory and not the disk; the part in memory after that."""
    for file in files:
        pagecache.warm(Path(file))
    resident = [pagecache.resident_bytes(Path(file)) for file in files]
    total = sum(Path(file).stat().st_size for file in files)
    return (
        None if None in resident or not total else min(1.0, sum(r for r in resident if r is not None) / total)
    )


def _file_of(path: Path, nbytes: int) -> NDArray[uint8]:
    """A writable map of a new file that has its blocks: a full disk is an error now, no later bus error."""
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, max(nbytes, 1))
        except OSError as error:
            raise RunFailed(
                f"--store mmap writes {nbytes / 2**20:.0f} MiB to {path.parent}: {error.strerror}. "
                "Cure: set TMPDIR to a larger disk, or use --store shared"
            ) from None
    return np.memmap(path, uint8, mode="r+", shape=(nbytes,)) if nbytes else np.empty(0, uint8)

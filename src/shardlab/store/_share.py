"""How one rank of a node builds what its other ranks then map."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardlab import shm
from shardlab.dataset._rows import rows_of
from shardlab.errors import RunFailed
from shardlab.measure import tree
from shardlab.store._pack import Packed, unpack
from shardlab.world import World

POLL_S = 0.01
NOTE = "store.json"
BUILDER = "store.builder"  # process and its start, while it builds
FAILED = "store.failed"  # what it said when it could not
GRACE_S = 2.0  # for the rank that failed to say so itself, and for a launcher to end the others


@dataclass(frozen=True)
class NodeShare:
    """What a store may use: who this rank is, the run's own folder, what the launcher built beforehand.

    ``source()`` builds the dataset in this process; ``mapped()`` opens it as a map of its files, or is None
    where its kind does not lie in files. ``samples`` and ``sample`` describe it without building it.
    """

    world: World
    run_dir: Path
    source: Callable[[], Any]
    mapped: Callable[[], Any] | None = None
    inherited: Any = None
    samples: int | None = None
    sample: Any = None
    files: tuple[str, ...] = ()
    timeout_s: float = 600.0


@dataclass(frozen=True)
class StoreNote:
    """``store.json`` in the run's folder: what this node shares. The monitor counts its bytes once.

    ``bytes`` is one copy as the store holds it; None where the store adds no copy of its own. ``warm_ratio``
    is the part of the files' pages that the page cache held before the first step.
    """

    bytes: int | None = None
    memfd: shm.Handle | None = None
    files: tuple[str, ...] = ()
    skeleton: shm.Handle | None = None
    warm_ratio: float | None = None


def warm_ratio(run_dir: Path) -> float | None:
    """What the store noted of the page cache, where it did."""
    path = run_dir / NOTE
    return msgspec.json.decode(path.read_bytes(), type=StoreNote).warm_ratio if path.exists() else None


def build_once(share: NodeShare, build: Callable[[], StoreNote]) -> StoreNote:
    """``build()`` on the node's leader; the same note on every rank of the node.

    Raises what ``build`` raised, and on the other ranks RunFailed with its text, or where the leader died.
    """
    path = share.run_dir / NOTE
    if share.world.is_node_leader:
        builder = share.run_dir / BUILDER
        _put(builder, f"{os.getpid()} {tree.start_ticks_of(os.getpid())}".encode())
        try:
            note = build()
        except BaseException as error:
            with suppress(OSError):  # the error itself is what counts
                _put(share.run_dir / FAILED, f"{type(error).__name__}: {error}".encode(errors="replace"))
            raise
        _put(path, msgspec.json.encode(note))
        builder.unlink()
        return note
    deadline = time.monotonic() + share.timeout_s
    while not path.exists():
        why = _why_in_vain(share.run_dir)
        if why and not path.exists():
            time.sleep(GRACE_S)
            raise RunFailed(f"local rank 0 could not build the shared copy: {why}")
        if time.monotonic() > deadline:
            raise RunFailed(
                f"local rank 0 did not finish building the shared copy within {share.timeout_s:.0f} s"
            )
        time.sleep(POLL_S)
    return msgspec.json.decode(path.read_bytes(), type=StoreNote)


def _why_in_vain(run_dir: Path) -> str:
    """Why the note will never come; empty where it still may."""
    builder, failed = run_dir / BUILDER, run_dir / FAILED
    if failed.exists():
        return failed.read_text()
    with suppress(FileNotFoundError):  # not begun, or just done
        pid, _, started = builder.read_text().partition(" ")
        if not tree.is_alive(int(pid), int(started)):
            return f"its process {pid} died"
    return ""


def _put(path: Path, content: bytes) -> None:
    """The file is there as a whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.rename(path)


def put_skeleton(packed: Packed) -> shm.Handle:
    """The small part of a packed dataset, in a memory file of its own."""
    raw = pickle.dumps(packed, protocol=5)
    file = shm.MemoryFile("skeleton", len(raw))
    file.buffer[:] = np.frombuffer(raw, np.uint8)
    return file.seal()


def get_skeleton(handle: shm.Handle) -> Packed:
    """What :func:`put_skeleton` put there, in this or another process of the run."""
    packed = pickle.loads(shm.attach(handle).tobytes())
    assert isinstance(packed, Packed)
    return packed


def attach_memory(note: StoreNote) -> Any:
    """The dataset whose arrays lie in the node's memory file."""
    assert note.memfd is not None
    assert note.skeleton is not None
    return unpack(get_skeleton(note.skeleton), shm.attach(note.memfd))


def attach_file(note: StoreNote) -> Any:
    """The dataset whose arrays lie in the node's file, mapped private: a write copies that page alone."""
    assert note.skeleton is not None
    buffer = np.memmap(note.files[0], np.uint8, mode="c") if note.bytes else np.empty(0, np.uint8)
    return unpack(get_skeleton(note.skeleton), buffer)


class Attached:
    """A dataset that goes to worker processes as a handle, not as bytes.

    Stock pickling of a tensor over mapped memory would copy the whole of it into /dev/shm.
    """

    def __init__(self, note: StoreNote, attach: Callable[[StoreNote], Any]) -> None:
        self.note = note
        self.attach = attach
        self.inner = attach(note)
        collate = getattr(self.inner, "collate_fn", None)
        if collate is not None:
            self.collate_fn = collate
        self._rows = rows_of(self.inner)
        if hasattr(self.inner, "__getitems__"):
            self.__getitems__ = self.inner.__getitems__
        elif self._rows is not None:
            self.__getitems__ = self._rows.samples

    @property
    def wraps(self) -> Any:
        """The dataset in the shared memory."""
        return self.inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int | NDArray[np.int64]) -> Any:
        """A sample; of a dataset of arrays also a batch of the samples at an array of indices, gathered."""
        if isinstance(index, np.ndarray) and self._rows is not None:
            return self._rows.batch(index)
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        """What else the dataset has: its classes, its targets."""
        if name == "inner":  # not made yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Attached, (self.note, self.attach)

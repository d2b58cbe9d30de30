"""What a write that is not finished has done so far, so that the next one can go on there.

``writing.lock`` in the folder holds one JSON object a line: first what is written and how, then each shard once
it lies there whole. A last line that was cut off does not count. The file is the writer's lock as well, and
goes when the manifest is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from shardlab.errors import UsageError
from shardlab.shards.manifest import NAME, Field, ShardEntry, Structure

WRITING = "writing.lock"


class Order(msgspec.Struct, frozen=True):
    """What was asked for. ``samples`` is 0 where it is not known; ``sample_0`` is a hash of the first."""

    source: str
    seed: int
    samples_per_shard: int | None
    shard_bytes: int
    samples: int
    structure: Structure
    fields: tuple[Field, ...]
    sample_0: str

    def difference(self, other: Order) -> str:
        """The first thing that is not the same in ``other``; empty where all is."""
        for name in ("source", "seed", "samples_per_shard", "shard_bytes", "samples"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} {theirs!r}, begun with {mine!r}"
        return "" if self == other else "another first sample"


class Done(msgspec.Struct, frozen=True):
    """A shard that lies there whole. ``shapes``: of each field, None where its rows differ."""

    shard: ShardEntry
    shapes: tuple[tuple[int, ...] | None, ...]


class Journal:
    """The file, locked for this process."""

    def __init__(self, file: IO[bytes], folder: Path) -> None:
        self.file, self.folder = file, folder
        self.content = file.read()
        lines = self.content.split(b"\n")[:-1]
        self.order: Order | None = None
        self.done: list[Done] = []
        try:
            if lines:
                self.order = msgspec.json.decode(lines[0], type=Order)
                self.done = [msgspec.json.decode(line, type=Done) for line in lines[1:]]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # what was read up to here counts: the rest is written anew

    def go_on(self, order: Order) -> list[Done]:
        """The shards that can be kept, each verified, all before the first one that cannot.

        Raises UsageError where the folder was begun with something else. A source without a name is never
        known to be the same, and begins anew.
        """
        if self.order is not None and self.order.source and (wrong := self.order.difference(order)):
            raise UsageError(
                "OUT holds an unfinished write, which goes on with the same source, seed and options only",
                f"{self.folder} with {wrong}",
                cure="give what it was begun with, or remove the folder",
            )
        kept: list[Done] = []
        known = order.source and self.order is not None
        if not known and (self.folder / NAME).exists():
            raise UsageError(
                "OUT must be a new or an empty folder, or one that shardlab.shard did not finish",
                f"{self.folder} with {NAME} in it",
                cure="name another folder, or remove this one",
            )
        for number, done in enumerate(self.done if known else ()):
            if done.shard.file != file_name(number) or not _is_whole(self.folder, done.shard):
                break
            kept.append(done)
        content = b"".join(msgspec.json.encode(line) + b"\n" for line in (order, *kept))
        if self.content.startswith(content):
            self.file.truncate(len(content))  # and never less, should this writer be killed right here
        else:
            self.file.truncate(0)
            self.file.write(content)
        self._to_disk()
        return kept

    def add(self, done: Done) -> None:
        """Note a shard that lies there whole."""
        self.file.write(msgspec.json.encode(done) + b"\n")
        self._to_disk()

    def _to_disk(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())


@contextmanager
def journal(folder: Path) -> Iterator[Journal]:
    """The journal of a folder for its one writer; removed where all went well."""
    path = folder / WRITING
    with open(path, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("a folder of shards must have one writer", f"two in {folder}") from None
        if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            raise UsageError("a folder of shards must have one writer", f"another has just ended in {folder}")
        file.seek(0)
        yield Journal(file, folder)
        path.unlink()


def file_name(number: int) -> str:
    """Name of a shard."""
    return f"shard-{number:05d}.safetensors"


def _is_whole(folder: Path, shard: ShardEntry) -> bool:
    try:
        with open(folder / shard.file, "rb") as file:
            if os.fstat(file.fileno()).st_size != shard.bytes:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == shard.sha256
    except OSError:
        return False

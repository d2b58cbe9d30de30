"""Write a dataset as a folder of shards: safetensors files, then the manifest that makes them one dataset."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from shardlab.errors import RunFailed, UsageError
from shardlab.shards import manifest as manifests
from shardlab.shards._rows import Row, fields_of, row_of
from shardlab.shards.manifest import Manifest, ShardEntry, Structure

SHARD_BYTES = 64 << 20
WRITING = "writing.lock"
"""Marks a folder that a writer has begun; a later writer clears it and begins anew."""

_OURS = re.compile(r"shard-\d{5,}\.safetensors(\.part)?|manifest\.json\.part|writing\.lock")

Progress = Callable[[int, int], None]


def write(
    dataset: Any,
    folder: str | Path,
    samples_per_shard: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
    source: str = "",
) -> Manifest:
    """Write all samples of ``dataset`` to ``folder``, made if need be, and return the manifest.

    A sample is a tensor, array or number, or a tuple, list or dict of these, all of one shape; whole numbers
    become int64 and others float32. A shard holds ``samples_per_shard``, or as many as fit ``shard_bytes``,
    at least one. Holds one shard in memory. ``progress(done, total)`` after each sample; total 0 is not
    known.

    Every file is written under another name and renamed when it is whole, the manifest last: a write that
    dies leaves no folder that can be opened. Raises UsageError for a folder with other files in it and for
    samples that do not fit, naming the field and the sample; RunFailed where the disk does not take the data.
    """
    folder = Path(folder)
    with _begun(folder):
        try:
            manifest = _write_shards(dataset, folder, samples_per_shard, shard_bytes, progress, source)
            _put(folder / manifests.NAME, lambda part: part.write_bytes(manifests.encode(manifest)))
        except OSError as error:
            raise RunFailed(f"{folder} could not be written: {error.strerror or error}") from error
    return manifest


def _write_shards(
    dataset: Any, folder: Path, per_shard: int | None, shard_bytes: int,
    progress: Progress | None, source: str,
) -> Manifest:  # fmt: skip
    samples = iter(_samples(dataset))
    first = next(samples, None)
    if first is None:
        raise UsageError("a dataset that is written as shards must have samples", 0)
    structure, fields = fields_of(first)
    row_bytes = sum(field.row_bytes for field in fields)
    capacity = per_shard if per_shard is not None else max(1, shard_bytes // max(1, row_bytes))
    if capacity < 1:
        raise UsageError("a shard must hold at least one sample", capacity)
    rows = _rows(chain([first], samples), structure, fields, progress, _length(dataset))
    shards: list[ShardEntry] = []
    while entry := _write_shard(folder, len(shards), rows, fields, capacity):
        shards.append(entry)
    return Manifest(sum(shard.samples for shard in shards), structure, fields, tuple(shards), source)


def _samples(dataset: Any) -> Iterable[Any]:
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return (dataset[index] for index in range(len(dataset)))
    return dataset  # type: ignore[no-any-return]


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return 0


def _rows(
    samples: Iterable[Any], structure: Structure, fields: tuple[manifests.Field, ...],
    progress: Progress | None, total: int,
) -> Iterator[Row]:  # fmt: skip
    for index, sample in enumerate(samples):
        yield row_of(sample, structure, fields, index)
        if progress is not None:
            progress(index + 1, total)


def _write_shard(
    folder: Path, number: int, rows: Iterator[Row], fields: tuple[manifests.Field, ...], capacity: int
) -> ShardEntry | None:
    """The next ``capacity`` rows, or what is left of them, as one file; None where nothing is left."""
    row = next(rows, None)
    if row is None:
        return None
    columns = [torch.empty((capacity, *f.shape), dtype=getattr(torch, f.dtype)) for f in fields]
    filled = 0
    while row is not None:
        for column, value in zip(columns, row, strict=True):
            column[filled] = value
        filled += 1
        row = next(rows, None) if filled < capacity else None
    tensors = {field.name: column[:filled] for field, column in zip(fields, columns, strict=True)}
    path = folder / f"shard-{number:05d}.safetensors"
    digest = _put(path, lambda part: save_file(tensors, part))
    return ShardEntry(path.name, filled, path.stat().st_size, digest)


def _put(path: Path, write_to: Callable[[Path], Any]) -> str:
    """Write a file under another name, then rename it; returns its SHA-256."""
    part = path.with_name(path.name + ".part")
    write_to(part)
    with open(part, "rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())  # before the rename: a name must not outlive the content it promises
    part.rename(path)
    return digest


@contextmanager
def _begun(folder: Path) -> Iterator[None]:
    """The folder with this writer's mark in it; cleared of what a writer that died left there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError("OUT must be a folder", str(folder)) from None
    _refuse_strangers(folder)
    with open(folder / WRITING, "w") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("a folder of shards must have one writer", f"two in {folder}") from None
        for path in folder.iterdir():
            if path.name != WRITING:
                path.unlink()
        yield
        (folder / WRITING).unlink()


def _refuse_strangers(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    unfinished = WRITING in names and manifests.NAME not in names
    strangers = names if not unfinished else [name for name in names if not _OURS.fullmatch(name)]
    if strangers:
        raise UsageError(
            "OUT must be a new or an empty folder, or one that shardlab.shard did not finish",
            f"{folder} with {', '.join(strangers[:3])} in it", cure="name another folder, or remove this one",
        )

"""Write a dataset as a folder of shards: safetensors files, then the manifest that makes them one dataset."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from shardlab.errors import RunFailed, UsageError
from shardlab.shards import manifest as manifests
from shardlab.shards._journal import WRITING, Done, Journal, Order, file_name, journal
from shardlab.shards._rows import Filling, Row, fields_of, raw_of, row_of
from shardlab.shards.manifest import Field, Manifest, ShardEntry, Structure

__all__ = ["SHARD_BYTES", "WRITING", "write"]

SHARD_BYTES = 64 << 20

# The last one is what safetensors writes before it gives a shard its name.
_OURS = re.compile(r"shard-\d{5,}\.safetensors(\.part)?|manifest\.json(\.part)?|writing\.lock|\.tmp\w{6}")

Progress = Callable[[int, int], None]


def write(
    dataset: Any,
    folder: str | Path,
    samples_per_shard: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
    source: str = "",
    seed: int = 0,
) -> Manifest:
    """Write all samples of ``dataset`` to ``folder``, made if need be, and return the manifest.

    A sample is a tensor, array, number, str or bytes, or a tuple, list or dict of these; whole numbers become
    int64 and others float32. A field's dtype and number of axes are those of sample 0, its shape may differ
    from sample to sample. A shard holds ``samples_per_shard``, or as many as fit ``shard_bytes``, at least
    one. Holds one shard in memory. ``progress(done, total)`` after each sample; total 0 is not known.

    Every file is written under another name and renamed when it is whole, the manifest last: a write that
    dies leaves no folder that can be opened. The next one with the same ``source``, ``seed`` and options goes
    on after the last whole shard, whose checksums it verifies first, and ends with the same bytes;
    ``progress`` then starts at what was kept. Without a ``source`` nothing says that the samples are the same,
    and it begins anew.

    Raises UsageError for a folder with other files in it, for an unfinished write of something else, and for
    samples that do not fit, naming the field and the sample; RunFailed where the disk does not take the data.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError("OUT must be a folder", str(folder)) from None
    _refuse_strangers(folder)
    with journal(folder) as notes:
        return _written(dataset, folder, notes, samples_per_shard, shard_bytes, progress, source, seed)


def _written(
    dataset: Any, folder: Path, notes: Journal, per_shard: int | None, shard_bytes: int,
    progress: Progress | None, source: str, seed: int,
) -> Manifest:  # fmt: skip
    if per_shard is not None and per_shard < 1:
        raise UsageError("a shard must hold at least one sample", per_shard)
    samples = iter(_samples(dataset))
    first = next(samples, None)
    if first is None:
        raise UsageError("a dataset that is written as shards must have samples", 0)
    structure, fields = fields_of(first)
    total, digest = _length(dataset), hashlib.sha256()
    for value in row_of(first, structure, fields, 0):
        digest.update(raw_of(value))
    order = Order(source, seed, per_shard, shard_bytes, total, structure, fields, digest.hexdigest())
    with _disk(folder):
        done = notes.go_on(order)
        _clear(folder, {one.shard.file for one in done})
    kept = sum(one.shard.samples for one in done)
    if kept and progress is not None:
        progress(kept, total)
    rows = _rows(_left(dataset, first, samples, kept), kept, structure, fields, progress, total)
    row = next(rows, None)
    while row is not None:
        entry, row = _write_shard(folder, len(done), row, rows, fields, per_shard, shard_bytes)
        done.append(entry)
        with _disk(folder):
            notes.add(entry)  # before the source is asked for more: it may take long, or end the process
        row = next(rows, None) if row is None else row
    manifest = _manifest(done, structure, fields, source)
    _put(folder / manifests.NAME, lambda part: part.write_bytes(manifests.encode(manifest)))
    return manifest


def _samples(dataset: Any) -> Iterable[Any]:
    if _is_map_style(dataset):
        return (dataset[index] for index in range(len(dataset)))
    return dataset  # type: ignore[no-any-return]


def _left(dataset: Any, first: Any, others: Iterator[Any], kept: int) -> Iterable[Any]:
    """The samples after the first ``kept``. Sample 0 was read already, and is not read again."""
    if kept and _is_map_style(dataset):
        return (dataset[index] for index in range(kept, len(dataset)))
    return islice(chain([first], others), kept, None)


def _is_map_style(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return 0


def _rows(
    samples: Iterable[Any], first: int, structure: Structure, fields: tuple[Field, ...],
    progress: Progress | None, total: int,
) -> Iterator[Row]:  # fmt: skip
    for index, sample in enumerate(samples, start=first):
        yield row_of(sample, structure, fields, index)
        if progress is not None:
            progress(index + 1, total)


def _write_shard(
    folder: Path, number: int, row: Row, rows: Iterator[Row], fields: tuple[Field, ...],
    per_shard: int | None, shard_bytes: int,
) -> tuple[Done, Row | None]:  # fmt: skip
    """``row`` and those after it, as many as belong in one file; and the next row, where it was read by then."""
    columns = [Filling(field) for field in fields]
    filled, size = 0, 0
    following: Row | None = row
    while following is not None:
        row_bytes = max(1, sum(len(raw_of(value)) for value in following))
        if filled and per_shard is None and size + row_bytes > shard_bytes:
            break
        for column, value in zip(columns, following, strict=True):
            column.add(value)
        filled, size, following = filled + 1, size + row_bytes, None
        if filled != per_shard:
            following = next(rows, None)
    tensors = {name: tensor for column in columns for name, tensor in column.arrays().items()}
    path = folder / file_name(number)
    digest = _put(path, lambda part: save_file(tensors, part))
    entry = ShardEntry(path.name, filled, path.stat().st_size, digest)
    return Done(entry, tuple(column.shape for column in columns)), following


def _manifest(done: list[Done], structure: Structure, fields: tuple[Field, ...], source: str) -> Manifest:
    """Of all shards; a field is one of fixed shape where all of them agree."""
    named = []
    for place, field in enumerate(fields):
        shapes = {one.shapes[place] for one in done}
        if field.kind == "fixed" and shapes == {field.shape}:
            named.append(replace(field, axes=0))
        else:
            named.append(replace(field, shape=(), kind="varies" if field.kind == "fixed" else field.kind))
    shards = tuple(one.shard for one in done)
    return Manifest(sum(shard.samples for shard in shards), structure, tuple(named), shards, source)


def _put(path: Path, write_to: Callable[[Path], Any]) -> str:
    """Write a file under another name, then rename it; returns its SHA-256."""
    part = path.with_name(path.name + ".part")
    with _disk(path.parent):
        write_to(part)
        with open(part, "rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())  # before the rename: a name must not outlive the content it promises
        part.rename(path)
    return digest


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """What the disk says, as an error that names the folder; what a source says is its own."""
    try:
        yield
    except OSError as error:
        raise RunFailed(f"{folder} could not be written: {error.strerror or error}") from error


def _clear(folder: Path, keep: set[str]) -> None:
    """Remove what a writer that died left there, less the shards that are kept."""
    for path in folder.iterdir():
        if path.name != WRITING and path.name not in keep:
            path.unlink()


def _refuse_strangers(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    strangers = names if WRITING not in names else [name for name in names if not _OURS.fullmatch(name)]
    if strangers:
        raise UsageError(
            "OUT must be a new or an empty folder, or one that shardlab.shard did not finish",
            f"{folder} with {', '.join(strangers[:3])} in it",
            cure="name another folder, or remove this one",
        )

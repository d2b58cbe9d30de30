"""``manifest.json``: what a folder of shards holds. Read from disk, so believed only after it is checked."""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from shardlab.errors import RunFailed, UsageError

NAME = "manifest.json"
FORMAT = "shardlab"
VERSION = 1
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4,
    "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip

Structure = Literal["tensor", "tuple", "dict"]

_LARGEST = (1 << 63) - 1
_MAX_AXES = 32
_LEAST_FILE = 10  # eight bytes of length and "{}"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Field:
    """One tensor of a sample: its name in the shards, torch dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of the field in one sample."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class ShardEntry:
    """One shard file: samples in it, its size in bytes, and its SHA-256 in hexadecimal."""

    file: str
    samples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that is known of a folder of shards; samples are numbered through the shards in their order.

    ``structure`` says how a sample is put together from its fields: a single ``tensor``, a ``tuple`` in the
    order of the fields, or a ``dict`` by their names. ``source`` is where the samples came from, for the
    reader.
    """

    samples: int
    structure: Structure
    fields: tuple[Field, ...]
    shards: tuple[ShardEntry, ...]
    source: str = ""
    version: int = VERSION
    format: str = FORMAT

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample."""
        return sum(field.row_bytes for field in self.fields)


def encode(manifest: Manifest) -> bytes:
    """The manifest as JSON for people and programs."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def load(folder: str | Path) -> Manifest:
    """Read and check the manifest of ``folder`` and the sizes of its shards; no content is read.

    Raises UsageError, naming the file and the rule, for a manifest that cannot be right, and RunFailed for a
    shard that is missing or has another size than it was written with.
    """
    path = Path(folder) / NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise UsageError("a folder of shards must have a manifest.json", str(folder)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} must be a manifest that shardlab.shard wrote", str(error)) from None
    check(manifest, path)
    for shard in manifest.shards:
        _check_file(path.parent / shard.file, shard.bytes)
    return manifest


def check(manifest: Manifest, path: Path) -> None:
    """Raise UsageError where the manifest contradicts itself or names what is not in its folder."""

    def rule(holds: bool, text: str, value: object) -> None:
        if not holds:
            raise UsageError(f"{path}: {text}", value)

    rule(manifest.format == FORMAT, "format must be shardlab", manifest.format)
    rule(manifest.version == VERSION, f"version must be {VERSION}", manifest.version)
    rule(bool(manifest.fields), "a sample must have a field", 0)
    names = [field.name for field in manifest.fields]
    rule(len(set(names)) == len(names), "field names must differ", names)
    rule(manifest.structure != "tensor" or len(names) == 1, "a tensor sample must have one field", names)
    for field in manifest.fields:
        rule(field.dtype in ITEM_BYTES, f"dtype of field {field.name!r} must be known", field.dtype)
        _check_shape(field, rule)
    total_bytes = manifest.row_bytes * max(manifest.samples, 1)
    rule(total_bytes <= _LARGEST, "the data must be addressable", f"{total_bytes} bytes")
    _check_shards(manifest, rule)


def _check_shape(field: Field, rule: Callable[[bool, str, object], None]) -> None:
    name, shape = f"shape of field {field.name!r}", field.shape
    rule(len(shape) <= _MAX_AXES, f"{name} must have at most {_MAX_AXES} axes", len(shape))
    rule(all(n >= 0 for n in shape), f"{name} must not be negative", shape)
    # zeros left out: an axis next to an empty one must be addressable too
    rule(math.prod(max(n, 1) for n in shape) <= _LARGEST // 8, f"{name} must be addressable", shape)


def _check_shards(manifest: Manifest, rule: Callable[[bool, str, object], None]) -> None:
    files = [shard.file for shard in manifest.shards]
    rule(len(set(files)) == len(files), "shard files must differ", files)
    for shard in manifest.shards:
        plain = _FILE_NAME.fullmatch(shard.file) is not None
        rule(plain, "a shard must be named by a plain file name inside the folder", shard.file)
        rule(shard.samples >= 0, f"samples of {shard.file} must be at least 0", shard.samples)
        least = shard.samples * manifest.row_bytes + _LEAST_FILE
        rule(shard.bytes >= least, f"bytes of {shard.file} must be at least {least}", shard.bytes)
        hexadecimal = re.fullmatch("[0-9a-f]{64}", shard.sha256) is not None
        rule(hexadecimal, f"sha256 of {shard.file} must be 64 hexadecimal digits", shard.sha256)
    total = sum(shard.samples for shard in manifest.shards)
    rule(manifest.samples == total, f"samples must be the sum over the shards ({total})", manifest.samples)


def _check_file(path: Path, size_bytes: int) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise RunFailed(f"shard {path} is missing. Cure: copy it again, or write the folder anew") from None
    check_size(path, status.st_mode, status.st_size, size_bytes)


def check_size(path: Path, mode: int, found_bytes: int, written_bytes: int) -> None:
    """Raise RunFailed where a shard is no regular file of the size that it was written with."""
    if not stat.S_ISREG(mode):
        raise RunFailed(f"shard {path} is not a regular file")
    if found_bytes != written_bytes:
        raise RunFailed(
            f"shard {path} has {found_bytes} bytes, but was written with {written_bytes}: truncated or "
            "replaced. Cure: copy it again, or write the folder anew"
        )

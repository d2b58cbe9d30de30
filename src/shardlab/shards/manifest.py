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
Kind = Literal["fixed", "varies", "str", "bytes"]

ENDS, SHAPES = ".ends", ".shapes"
"""What is put after a field's name to name the arrays that say where its rows end, and their shapes."""

_LARGEST = (1 << 63) - 1
_MAX_AXES = 32
_LEAST_FILE = 10  # eight bytes of length and "{}"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Field:
    """One value of a sample: its name in the shards, torch dtype and shape.

    ``kind`` is ``fixed`` for tensors of one shape. Of the others a shard holds all elements in one flat array,
    and int64 arrays ``NAME.ends`` and ``NAME.shapes`` beside it: ``varies`` for tensors of ``axes`` axes and any
    shape (a shard where all are of one shape may hold them as fixed), ``str`` (UTF-8) and ``bytes`` without
    shapes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    kind: Kind = "fixed"
    axes: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of the field in one sample; 0 where they differ."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape) if self.kind == "fixed" else 0

    @property
    def array_names(self) -> list[str]:
        """Names of the arrays that a shard may hold for it."""
        beside = {"fixed": [], "varies": [ENDS, SHAPES]}.get(self.kind, [ENDS])
        return [self.name, *(self.name + suffix for suffix in beside)]


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
        """Bytes of one sample, less the fields whose length differs."""
        return sum(field.row_bytes for field in self.fields)

    @property
    def is_fixed(self) -> bool:
        """True where all samples have one shape."""
        return all(field.kind == "fixed" for field in self.fields)

    @property
    def data_bytes(self) -> int:
        """Bytes of all samples; of the files where samples differ in length."""
        if self.is_fixed:
            return self.samples * self.row_bytes
        return sum(shard.bytes for shard in self.shards)


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
    arrays = [name for field in manifest.fields for name in field.array_names]
    rule(len(set(arrays)) == len(arrays), "names of the arrays of fields must differ", arrays)
    total_bytes = manifest.row_bytes * max(manifest.samples, 1)
    rule(total_bytes <= _LARGEST, "the data must be addressable", f"{total_bytes} bytes")
    _check_shards(manifest, rule)


def _check_shape(field: Field, rule: Callable[[bool, str, object], None]) -> None:
    name, shape = f"shape of field {field.name!r}", field.shape
    if field.kind != "fixed":
        rule(not shape, f"{name} must be left out, as it differs", shape)
        of_bytes = field.kind == "varies" or (field.dtype == "uint8" and not field.axes)
        rule(of_bytes, f"field {field.name!r} of {field.kind} must be uint8", field.dtype)
    rule(
        0 <= field.axes <= _MAX_AXES, f"axes of field {field.name!r} must be at most {_MAX_AXES}", field.axes
    )
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

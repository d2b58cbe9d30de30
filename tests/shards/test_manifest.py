"""A manifest is believed only where it agrees with itself and with its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shardlab.dataset._arrays import ArrayDataset
from shardlab.errors import RunFailed, UsageError
from shardlab.shards.manifest import load
from shardlab.shards.writer import write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(ArrayDataset(torch.zeros(7, 3)), tmp_path / "s", samples_per_shard=4, source="zeros")
    return tmp_path / "s"


def edited(folder: Path, place: list[str | int], value: Any) -> None:
    """Set one entry of the manifest on disk."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))


def test_a_manifest_says_what_was_written(folder: Path) -> None:
    manifest = load(folder)
    assert (manifest.samples, manifest.structure, manifest.version) == (7, "tensor", 1)
    assert manifest.source == "zeros"
    assert [(field.dtype, field.shape) for field in manifest.fields] == [("float32", (3,))]
    assert [shard.samples for shard in manifest.shards] == [4, 3]
    assert manifest.row_bytes == 12


NAMES = [
    "../x", "..", ".", "/etc/passwd", "a/b", "a\\b", "C:x", "", "x\n", "x\0y", ".hidden", "a" * 300, "~root",
    "é", "a/../../x",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_could_leave_the_folder_is_refused(folder: Path, name: str) -> None:
    edited(folder, ["shards", 0, "file"], name)
    with pytest.raises(UsageError, match="plain file name"):
        load(folder)


EDITS: list[tuple[list[str | int], Any, str]] = [
    (["version"], 2, "version must be 1"),
    (["version"], "1", "must be a manifest that"),
    (["format"], "other", "format must be shardlab"),
    (["samples"], 8, r"sum over the shards \(7\)"),
    (["samples"], -1, "sum over the shards"),
    (["shards", 0, "samples"], -4, "at least 0"),
    (["shards", 0, "samples"], 10**6, "must be at least"),
    (["shards", 0, "samples"], 4.5, "must be a manifest that"),
    (["shards", 0, "bytes"], -1, "must be at least"),
    (["shards", 0, "bytes"], 40, "must be at least"),
    (["shards", 0, "sha256"], "abc", "64 hexadecimal"),
    (["shards", 1, "file"], "shard-00000.safetensors", "must differ"),
    (["shards"], None, "must be a manifest that"),
    (["structure"], "list", "must be a manifest that"),
    (["fields"], [], "must have a field"),
    (["fields", 0, "dtype"], "complex64", "must be known"),
    (["fields", 0, "dtype"], "__class__", "must be known"),
    (["fields", 0, "shape"], [-3], "not be negative"),
    (["fields", 0, "shape"], [2**62, 2**62], "addressable"),
    (["fields", 0, "shape"], [0, 2**62, 2**62], "addressable"),
    (["fields", 0, "shape"], [10**30], "must be a manifest that|addressable"),
    (["fields", 0, "shape"], [1] * 100, "at most 32 axes"),
]


@pytest.mark.parametrize(("place", "value", "why"), EDITS)
def test_a_manifest_that_cannot_be_right_is_refused_by_its_rule(
    folder: Path, place: list[str | int], value: Any, why: str
) -> None:
    edited(folder, place, value)
    with pytest.raises(UsageError, match=rf"manifest\.json.*({why})"):
        load(folder)


BROKEN = [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"samples": 1}', b'{"x":' + b"[" * 100_000]


@pytest.mark.parametrize("content", BROKEN)
def test_a_file_that_is_no_manifest_is_refused(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"manifest\.json must be a manifest"):
        load(folder)


def test_fields_of_one_name_are_refused(folder: Path) -> None:
    field = {"name": "data", "dtype": "uint8", "shape": [1]}
    edited(folder, ["structure"], "tuple")
    edited(folder, ["fields"], [field, field])
    with pytest.raises(UsageError, match="field names must differ"):
        load(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "shard-00001.safetensors").unlink()
    with pytest.raises(RunFailed, match=r"shard-00001\.safetensors is missing"):
        load(folder)


def test_a_shard_of_another_size_is_named(folder: Path) -> None:
    (folder / "shard-00001.safetensors").write_bytes(b"x")
    with pytest.raises(RunFailed, match=r"shard-00001\.safetensors has 1 bytes"):
        load(folder)


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "other"}, "must be a manifest that"),
    ({"kind": "varies"}, "must be left out"),
    ({"kind": "str", "shape": []}, "must be uint8"),
    ({"kind": "bytes", "shape": [], "dtype": "uint8", "axes": 1}, "must be uint8"),
    ({"kind": "varies", "shape": [], "axes": -1}, "axes"),
    ({"kind": "varies", "shape": [], "axes": 10**6}, "axes"),
]


@pytest.mark.parametrize(("change", "why"), FIELDS)
def test_a_field_of_differing_length_that_contradicts_itself_is_refused(
    folder: Path, change: dict[str, Any], why: str
) -> None:
    edited(folder, ["fields", 0], {"name": "data", "dtype": "float32", "shape": [3]} | change)
    with pytest.raises(UsageError, match=rf"manifest\.json.*({why})"):
        load(folder)


def test_arrays_of_two_fields_must_not_have_one_name(folder: Path) -> None:
    edited(folder, ["structure"], "tuple")
    text = {"name": "a", "dtype": "uint8", "kind": "str"}
    edited(folder, ["fields"], [text, {"name": "a.ends", "dtype": "uint8", "shape": []}])
    with pytest.raises(UsageError, match="names of the arrays of fields must differ"):
        load(folder)

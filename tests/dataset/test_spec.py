"""Which kind a text names, and what is said about a text that names none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardlab import plugins
from shardlab.dataset import DatasetSpec, kind_of, open_dataset, supports_mapping
from shardlab.errors import UsageError


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("synthetic", "synthetic"),
        ("synthetic:64MiB:784:uint8", "synthetic"),
        ("records:200k", "records"),
        ("mnist", "mnist"),
        ("fashion-mnist", "fashion-mnist"),
        ("package.module:factory", "factory"),
        ("file.py:factory", "factory"),
        ("mnist.py:factory", "factory"),
        ("records/file.py:factory", "factory"),
    ],
)
def test_a_text_names_its_kind(text: str, kind: str) -> None:
    assert kind_of(DatasetSpec(text)) == kind


def test_a_path_names_its_kind_by_what_lies_there(tmp_path: Path) -> None:
    (tmp_path / "x.npy").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "manifest.json").touch()
    assert kind_of(DatasetSpec(str(tmp_path / "x.npy"))) == "npy"
    assert kind_of(DatasetSpec(str(tmp_path / "folder"))) == "shards"
    assert kind_of(DatasetSpec(str(tmp_path / "folder") + "/")) == "shards"


def test_a_folder_without_manifest_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"python -m shardlab\.shard SOURCE"):
        kind_of(DatasetSpec(str(tmp_path)))


def test_a_missing_npy_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"exists, but got '.*gone\.npy'"):
        kind_of(DatasetSpec(str(tmp_path / "gone.npy")))


@pytest.mark.parametrize("text", ["", "nonsense", "npy", "shards", "cifar:10", "/nowhere/at/all"])
def test_any_other_text_gets_the_choices(text: str) -> None:
    with pytest.raises(UsageError, match=r"records:N.*synthetic:SIZE.*file\.py:factory"):
        kind_of(DatasetSpec(text))


def test_each_kind_says_what_it_is_in_one_line() -> None:
    kinds = plugins.find("dataset")
    assert set(kinds) == {"synthetic", "records", "mnist", "fashion-mnist", "npy", "shards", "image-folder"}
    assert all(plugin.summary for plugin in kinds.values())


def test_only_what_lies_in_files_is_mapped() -> None:
    assert not supports_mapping(DatasetSpec("synthetic"))
    assert not supports_mapping(DatasetSpec("package.module:factory"))
    with pytest.raises(UsageError, match=r"must lie in files.*npy, shards"):
        open_dataset(DatasetSpec("synthetic:1MiB"), mapped=True)


def test_naming_a_dataset_imports_no_torch() -> None:
    use = "from shardlab.dataset import *; kind_of(DatasetSpec('mnist'))"
    code = f"import sys; {use}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"

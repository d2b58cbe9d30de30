"""What ``--dataset`` names: the text, and the kind that it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardlab import plugins
from shardlab.errors import UsageError

FACTORY = "factory"


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset as the command line names it; opening it is :func:`shardlab.dataset.open_dataset`."""

    text: str
    data_dir: str | None = None
    seed: int = 0


def kind_of(spec: DatasetSpec) -> str:
    """``synthetic``, ``records``, ``npy``, ...: a file of this folder, or ``factory`` for the user's own.

    A kind's file may say how it is recognised beside its name: ``SUFFIX`` of a file, ``MARKER``, a file
    inside a folder, or ``HOLDS``, suffixes of files in the folders inside a folder. ``file.py:factory`` wins
    over the names of kinds. Raises UsageError for all else.
    """
    text = spec.text
    if plugins.is_reference(text) and text.rpartition(":")[0].endswith(".py"):
        return FACTORY
    kinds = plugins.find("dataset")
    name = text.partition(":")[0]
    if name in kinds and not _lies_on_disk(kinds[name]):
        return name
    by_path = _by_path(text, kinds) if text else None
    if by_path is not None:
        return by_path
    if plugins.is_reference(text):
        return FACTORY
    choices = [plugin.summary.partition(",")[0] for plugin in kinds.values()]
    choices += ["package.module:factory", "file.py:factory"]
    raise UsageError("--dataset must name a dataset", text, choices)


def arguments_of(spec: DatasetSpec) -> str:
    """What the kind's file is given: the text after its name, or the whole text where that is a path."""
    plugin = plugins.find("dataset").get(kind_of(spec))
    if plugin is None or _lies_on_disk(plugin):
        return spec.text
    return spec.text.partition(":")[2]


def _lies_on_disk(plugin: plugins.Plugin) -> bool:
    return any(plugin.fact(name) is not None for name in ("SUFFIX", "MARKER", "HOLDS"))


def _by_path(text: str, kinds: dict[str, plugins.Plugin]) -> str | None:
    path = Path(text)
    for name, plugin in kinds.items():
        suffix = plugin.fact("SUFFIX")
        if suffix is not None and text.endswith(suffix):
            if not path.is_file():
                raise UsageError(f"--dataset must name a {suffix} file that exists", text)
            return name
        marker = plugin.fact("MARKER")
        if marker is not None and (path / marker).is_file():
            return name
    for name, plugin in kinds.items():  # a marker says more
        if plugin.fact("HOLDS") is not None and _holds(path, plugin.fact("HOLDS")):
            return name
    if path.is_dir():
        raise UsageError(
            "--dataset must name a folder with a manifest.json, or of class folders with images",
            text,
            cure=f"write one with: python -m shardlab.shard SOURCE {text}",
        )
    return None


def _holds(path: Path, suffixes: tuple[str, ...]) -> bool:
    """True where a folder in ``path`` has, at any depth, a file of one of the suffixes."""
    try:
        folders = [entry for entry in sorted(path.iterdir()) if entry.is_dir()]
    except OSError:
        return False
    return any(file.lower().endswith(suffixes) for folder in folders for file in _names_below(folder))


def _names_below(folder: Path) -> Iterator[str]:
    return (name for _, _, names in os.walk(folder) for name in names)

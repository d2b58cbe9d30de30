"""From a spec to the dataset, or to what is known of it without building it."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardlab import plugins
from shardlab.dataset._facts import DatasetFacts
from shardlab.dataset._spec import FACTORY, DatasetSpec, arguments_of, kind_of
from shardlab.errors import UsageError

if TYPE_CHECKING:
    from torch.utils.data import Dataset


def open_dataset(spec: DatasetSpec, mapped: bool = False) -> Dataset[Any]:
    """The dataset, built in this process: map-style, or an IterableDataset.

    With ``mapped`` its files are mapped, private and writable, instead of read. Raises UsageError where the
    kind does not lie in files (see :func:`supports_mapping`), and what the kind itself raises.
    """
    module = _module(spec)
    if not mapped:
        return module.open(arguments_of(spec), spec)  # type: ignore[no-any-return]
    if not supports_mapping(spec):
        fitting = [name for name, plugin in plugins.find("dataset").items() if plugin.fact("MAPPED")]
        raise UsageError("a dataset that is mapped must lie in files", spec.text, fitting)
    return module.open_mapped(arguments_of(spec), spec)  # type: ignore[no-any-return]


def supports_mapping(spec: DatasetSpec) -> bool:
    """True where :func:`open_dataset` can map the dataset's files."""
    plugin = plugins.find("dataset").get(kind_of(spec))
    return plugin is not None and bool(plugin.fact("MAPPED", False))


def facts_without_building(spec: DatasetSpec) -> DatasetFacts | None:
    """What arguments, headers and manifests say; None for a kind that has to be built to be known."""
    plugin = plugins.find("dataset").get(kind_of(spec))
    if plugin is None or not plugin.defines("facts"):
        return None  # and import nothing: torchvision or a user's module would stay in the process that asks
    return plugin.load().facts(arguments_of(spec), spec)  # type: ignore[no-any-return]


def import_for(spec: DatasetSpec) -> None:
    """Import what :func:`open_dataset` would, and build nothing: a control run carries the same modules."""
    _module(spec)
    if kind_of(spec) == FACTORY:
        plugins.load_reference(spec.text, "--dataset")


def _module(spec: DatasetSpec) -> ModuleType:
    kind = kind_of(spec)
    if kind == FACTORY:
        from shardlab.dataset import _factory

        return _factory
    return plugins.find("dataset")[kind].load()

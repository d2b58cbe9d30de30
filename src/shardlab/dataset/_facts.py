"""What is known of a dataset without holding it: how many samples and bytes, and what a sample is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

Tree = dict[str, Any]
"""A sample's structure, see :func:`shardlab.dataset.describe_sample`."""


@dataclass(frozen=True)
class DatasetFacts:
    """A dataset in figures; survives JSON, so that a throw-away process can find them out and say them.

    ``samples`` is None where the dataset has no length. ``dataset_bytes`` are the bytes that one copy
    occupies in memory, or in the file that is mapped; None, with the ``reason``, where that cannot be known.
    ``files`` are the dataset's own files. ``objects`` says that Python objects are a part of those bytes, so
    that the figure is a measured one; arrays are counted exactly. ``collate`` names the dataset's own collate
    function, see :func:`collate_name`.
    """

    samples: int | None
    dataset_bytes: int | None
    sample: Tree
    files: tuple[str, ...] = ()
    iterable: bool = False
    objects: bool = False
    reason: str = ""
    collate: str | None = None

    def import_collate(self) -> Callable[[list[Any]], Any] | None:
        """The dataset's own collate function, without the dataset; None where no name leads to it."""
        return by_name(self.collate) if self.collate else None


def collate_name(dataset: Any) -> str | None:
    """``module:name`` of a dataset's own ``collate_fn``; None where it has none.

    Empty where the dataset itself would be needed to have it again: a bound method, a lambda, a function made
    inside another, an object that can be called.
    """
    function = getattr(dataset, "collate_fn", None)
    if function is None:
        return None
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    try:
        return name if by_name(name) == function else ""
    except (ImportError, AttributeError, ValueError):
        return ""


def by_name(text: str) -> Any:
    """What ``module:name`` refers to, where the name may have dots. Raises what importing it does."""
    module, _, name = text.partition(":")
    return attrgetter(name)(importlib.import_module(module))


def encode_facts(facts: DatasetFacts) -> bytes:
    """The facts as JSON."""
    return msgspec.json.encode(facts)


def decode_facts(data: bytes) -> DatasetFacts:
    """The facts from :func:`encode_facts`. Raises msgspec.ValidationError for any other JSON."""
    return msgspec.json.decode(data, type=DatasetFacts)

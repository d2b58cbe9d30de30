"""What is known of a dataset without holding it: how many samples and bytes, and what a sample is."""

from __future__ import annotations

from dataclasses import dataclass
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
    that the figure is a measured one; arrays are counted exactly.
    """

    samples: int | None
    dataset_bytes: int | None
    sample: Tree
    files: tuple[str, ...] = ()
    iterable: bool = False
    objects: bool = False
    reason: str = ""


def encode_facts(facts: DatasetFacts) -> bytes:
    """The facts as JSON."""
    return msgspec.json.encode(facts)


def decode_facts(data: bytes) -> DatasetFacts:
    """The facts from :func:`encode_facts`. Raises msgspec.ValidationError for any other JSON."""
    return msgspec.json.decode(data, type=DatasetFacts)

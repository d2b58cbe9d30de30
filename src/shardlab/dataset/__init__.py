"""What a person may name with ``--dataset``: one file per kind.

A kind's file has ``open(args, spec)``, and where it can ``facts(args, spec)`` (known without building) and
``open_mapped(args, spec)`` with ``MAPPED = True``. It is found by its name, or by ``SUFFIX``, ``MARKER`` or
``HOLDS``.
Parsing a spec imports no torch; opening one does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardlab.dataset._facts import DatasetFacts, Tree, decode_facts, encode_facts
from shardlab.dataset._open import facts_without_building, import_for, open_dataset, supports_mapping
from shardlab.dataset._sample import blank_sample, describe_sample, sample_bytes
from shardlab.dataset._spec import DatasetSpec, kind_of

if TYPE_CHECKING:
    from torch.utils.data import Dataset

__all__ = [
    "DatasetFacts",
    "DatasetSpec",
    "Tree",
    "blank_sample",
    "decode_facts",
    "describe_sample",
    "encode_facts",
    "facts_without_building",
    "import_for",
    "kind_of",
    "measure",
    "open_dataset",
    "sample_bytes",
    "stand_in",
    "supports_mapping",
]


def measure(spec: DatasetSpec) -> DatasetFacts:
    """Build the dataset in this process and measure it; meant for a process to be thrown away."""
    from shardlab.dataset import _size

    return _size.measure(spec)


def stand_in(facts: DatasetFacts, n: int, seed: int = 0) -> Dataset[Any]:
    """``n`` samples of the same structure with content of their own; needs nothing of the user's code."""
    from shardlab.dataset import _stand_in

    return _stand_in.stand_in(facts, n, seed)

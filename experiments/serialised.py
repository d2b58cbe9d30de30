"""The records of ``records:N`` as one encoded buffer in every process that builds them, shared with nobody.

What a script does that loads an annotation file and then serialises its list, as detectron2's
``DatasetFromList`` has it: the list is built first and dropped. The number is in the factory's name::

    python -m shardlab.profile --dataset experiments/serialised.py:records_200k --workers 2
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shardlab.dataset import DatasetSpec, open_dataset
from shardlab.dataset._arrays import SerializedList, serialize


def __getattr__(name: str) -> Callable[[], SerializedList]:
    """``records_N`` is a factory of N records."""
    kind, _, count = name.partition("_")
    if kind != "records" or not count:
        raise AttributeError(name)
    return partial(encoded, count)


def encoded(count: str) -> SerializedList:
    """So many records, encoded."""
    records = open_dataset(DatasetSpec(f"records:{count}"))
    return SerializedList(*serialize(records[index] for index in range(len(records))))

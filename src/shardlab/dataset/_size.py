"""How many bytes one copy of a dataset occupies, found by building it once, in a process to be thrown away.

Arrays are counted exactly: the distinct bytes of all tensor storages and array buffers that can be reached
from the dataset. What the allocator keeps after ``torch.stack`` of a list is no part of it. Python objects
have no such figure: ``sys.getsizeof`` knows neither the allocator's rounding nor what C code holds, so they
are taken as the growth of the process's anonymous memory, less the arrays on the heap. Both readings come
after ``gc.collect()`` and ``malloc_trim(0)``.

Source: the pages of ``/proc/self/smaps_rollup``; see also Wu, Demystify RAM Usage in Multi-Process Data
Loaders, 2022, for why resident pages and not object sizes are what a node runs out of.
"""

from __future__ import annotations

import ctypes
import gc
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from shardlab.dataset._facts import DatasetFacts, collate_name
from shardlab.dataset._open import facts_without_building, import_for, open_dataset
from shardlab.dataset._sample import describe_sample, sample_bytes
from shardlab.dataset._spec import DatasetSpec
from shardlab.dataset._walk import Held, held

OBJECT_SHARE = 0.02  # of the array bytes: fewer objects are the arrays' own headers
FRAME_BYTES = 1 << 16  # objects of any dataset: its class's fields, transforms, settings
ON_DEMAND_SHARE = 0.01  # of the samples' bytes: a dataset that holds less makes or reads them when asked


def measure(spec: DatasetSpec) -> DatasetFacts:
    """Build the dataset in this process and measure it. Run it in a process of its own: the bytes stay."""
    known = facts_without_building(spec)
    if known is not None:
        return known
    import_for(spec)
    before = anonymous_bytes()
    dataset = open_dataset(spec)
    after = anonymous_bytes()
    growth = None if before is None or after is None else after - before
    return _facts(dataset, held(dataset), growth)


def anonymous_bytes() -> int | None:
    """Anonymous memory of this process, swapped pages included; None where the kernel does not say.

    Of the fields of smaps_rollup ``Anonymous`` counts a page once when a fork's copy-on-write makes it
    private, which is no growth of the dataset.
    """
    gc.collect()
    _trim()
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return None
    kib = dict(re.findall(r"^(Anonymous|Swap): +(\d+) kB$", text, re.MULTILINE))
    return sum(int(value) * 1024 for value in kib.values()) if "Anonymous" in kib else None


def _trim() -> None:
    """Give freed heap back to the kernel, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def bytes_of(size: Held, growth: int | None) -> tuple[int, bool]:
    """``(bytes, objects)`` of one copy, from what a walk found and what anonymous memory grew by.

    >>> bytes_of(Held(array_bytes=100_000_000, heap_bytes=100_000_000, object_bytes=9000), 150_000_000)
    (100000000, False)
    >>> bytes_of(Held(array_bytes=0, heap_bytes=0, object_bytes=40_000_000), 60_000_000)
    (60000000, True)
    """
    if size.object_bytes <= max(OBJECT_SHARE * size.array_bytes, FRAME_BYTES):
        return (size.array_bytes, False) if size.array_bytes else (size.object_bytes, True)
    # The walk is a lower bound: memory that was free before the build took a part of the objects.
    grown = 0 if growth is None else growth - size.heap_bytes
    return size.array_bytes + max(size.object_bytes, grown), True


def _facts(dataset: Any, size: Held, growth: int | None) -> DatasetFacts:
    total, objects = bytes_of(size, growth)
    samples, iterable = _length(dataset), isinstance(dataset, IterableDataset)
    sample = describe_sample(_first(dataset, samples, iterable))
    facts = DatasetFacts(samples, total, sample, size.files, iterable, objects, collate=collate_name(dataset))
    expected = (samples or 1) * sample_bytes(sample)
    if total >= max(ON_DEMAND_SHARE * expected, 1) and not (samples is None and total < FRAME_BYTES):
        return facts
    return replace(
        facts, dataset_bytes=None, objects=False,
        reason=f"the dataset holds {total} bytes in memory: it makes or reads its samples when asked",
    )  # fmt: skip


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _first(dataset: Any, samples: int | None, iterable: bool) -> Any:
    if iterable:
        return next(iter(dataset), None)
    return dataset[0] if samples else None

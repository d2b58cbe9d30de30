"""The bytes of one copy: exact for arrays, near the resident bytes for objects."""

from __future__ import annotations

import logging
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from shardlab.dataset import DatasetFacts, DatasetSpec, decode_facts, encode_facts, measure
from shardlab.dataset._size import bytes_of
from shardlab.dataset._walk import Held, held

ONE = torch.zeros(100, 100)  # 40 000 bytes


class Holder:
    """A dataset with whatever attributes a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def closure(values: Any) -> Any:
    return lambda index: values[index]


@pytest.mark.parametrize(
    ("held_object", "expected"),
    [
        (TensorDataset(ONE), 40_000),
        (Holder(a=ONE, b=[ONE, ONE[:5]], c={"view": ONE.T}), 40_000),
        (Holder(tensor=ONE, array=ONE.numpy()), 40_000),
        (Holder(view=np.zeros((100, 100))[::2, ::-1]), 80_000),
        (Holder(wide=np.broadcast_to(np.zeros(1000), (50, 1000))), 8_000),
        (Holder(parts=[torch.zeros(10, dtype=torch.uint8) for _ in range(7)]), 70),
        (Holder(objects=np.array([np.zeros(1000), np.zeros(3000)], dtype=object)), 32_016),
        (Holder(sparse=torch.zeros(3, 4).fill_diagonal_(1).to_sparse()), 3 * 2 * 8 + 3 * 4),
        (Holder(fetch=closure(ONE)), 40_000),
        (Holder(method=Holder(a=ONE).__repr__), 40_000),
        (Holder(blobs=[bytes(100_000), bytearray(200_000)]), 300_000),
        (Holder(module=np, logger=logging.getLogger("x"), kind=torch.Tensor, function=np.load), 0),
        (Holder(empty=torch.empty(0)), 0),
    ],
)
def test_distinct_bytes_of_arrays_are_found_wherever_they_are_kept(held_object: Any, expected: int) -> None:
    assert held(held_object).array_bytes == expected


def test_a_tensor_stacked_from_a_list_is_its_own_bytes_alone() -> None:
    stacked = torch.stack([torch.randn(3, 64, 64) for _ in range(20)])
    assert held(TensorDataset(stacked)).array_bytes == 20 * 3 * 64 * 64 * 4


def test_a_loop_of_references_ends() -> None:
    loop: list[Any] = [ONE]
    loop.append(loop)
    assert held(loop).array_bytes == 40_000


def test_a_class_that_counts_its_arrays_in_its_own_size_is_not_counted_twice() -> None:
    import pandas as pd

    size = held(Holder(frame=pd.DataFrame({"a": np.arange(100_000)})))
    assert size.array_bytes >= 800_000
    assert size.object_bytes < 100_000


def test_mapped_files_are_named_and_lie_outside_the_heap(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(1 << 20, np.uint8))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for rows in (mapped, mapped[10:], torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))):
        size = held(Holder(rows=rows))
        assert size.array_bytes == mapped.nbytes  # a view keeps the whole array
        assert size.heap_bytes == 0
        assert size.files == (str(tmp_path / "x.npy"),)


def test_a_tensor_over_a_map_names_the_file_too(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(1 << 16))
    tensor = torch.from_file(str(tmp_path / "raw"), size=1 << 16, dtype=torch.uint8)
    assert held(tensor).files == (str(tmp_path / "raw"),)


def test_shared_memory_is_no_heap() -> None:
    size = held(torch.zeros(1 << 18, dtype=torch.uint8).share_memory_())
    assert (size.array_bytes, size.heap_bytes, size.files) == (1 << 18, 0, ())


def test_an_open_map_counts_as_a_buffer() -> None:
    with mmap.mmap(-1, 1 << 20) as opened:
        assert held([opened]).array_bytes == 1 << 20


@pytest.mark.parametrize(
    ("size", "growth", "expected"),
    [
        (Held(10**8, 10**8, 10**6), 3 * 10**8, (10**8, False)),  # the allocator keeps the rest
        (Held(10**8, 10**8, 10**7), 12 * 10**7, (12 * 10**7, True)),
        (Held(10**8, 0, 10**7), 2 * 10**7, (12 * 10**7, True)),  # the arrays lie in a file
        (Held(0, 0, 10**7), 5 * 10**6, (10**7, True)),  # free memory was used again
        (Held(0, 0, 10**7), None, (10**7, True)),
        (Held(0, 0, 500), 10**7, (500, True)),  # what grew was not these few objects
    ],
)
def test_objects_are_what_memory_grew_by(size: Held, growth: int | None, expected: tuple[int, bool]) -> None:
    assert bytes_of(size, growth) == expected


SOURCES = """
import numpy as np, torch
from torch.utils.data import Dataset, IterableDataset

def strings(): return [f"{i:0100d}" for i in range(100_000)]
def images(): return [np.full(60_000, i % 250, np.uint8) for i in range(100)]
class Lazy(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index): return torch.zeros(1000)
class Stream(IterableDataset):
    def __iter__(self): return iter(range(20))
def nothing(): return []
"""


def measured(text: str) -> DatasetFacts:
    """Facts found where they are meant to be found: in a process of their own."""
    code = (
        "import sys; from shardlab.dataset import *; "
        "sys.stdout.buffer.write(encode_facts(measure(DatasetSpec(sys.argv[1]))))"
    )
    return decode_facts(subprocess.check_output([sys.executable, "-c", code, text]))


def test_a_list_of_strings_is_measured_within_two_percent(tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(SOURCES)
    facts = measured(f"{tmp_path / 'users.py'}:strings")
    # 49 bytes of header and 100 of text take 160 of pymalloc; a list has a pointer each and up to 1/8 to grow
    assert 168 * 100_000 * 0.98 < (facts.dataset_bytes or 0) < 169 * 100_000 * 1.02
    assert facts.objects
    assert facts.samples == 100_000


def test_in_this_process_arrays_are_exact_and_unknown_bytes_have_a_reason(tmp_path: Path) -> None:
    (tmp_path / "users_sources.py").write_text(SOURCES)
    path = tmp_path / "users_sources.py"
    images = measure(DatasetSpec(f"{path}:images"))
    assert (images.dataset_bytes, images.objects) == (6_000_000, False)
    lazy, stream, nothing = (measure(DatasetSpec(f"{path}:{name}")) for name in ("Lazy", "Stream", "nothing"))
    assert lazy.dataset_bytes is stream.dataset_bytes is None
    assert "when asked" in lazy.reason
    assert (lazy.samples, stream.samples, nothing.samples) == (1000, None, 0)
    assert (lazy.iterable, stream.iterable) == (False, True)
    assert stream.sample["kind"] == "int"


def test_facts_survive_json() -> None:
    sample = {"kind": "tuple", "items": [{"kind": "int", "high": 3}]}
    facts = DatasetFacts(3, None, sample, ("/a/b",), True, True, "why")
    assert decode_facts(encode_facts(facts)) == facts

"""What was written is what is read, and damage is named before a byte of it is served."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from shardlab.dataset import DatasetSpec, facts_without_building, open_dataset
from shardlab.dataset._arrays import ArrayDataset
from shardlab.errors import RunFailed
from shardlab.shards.reader import ShardedArrays
from shardlab.shards.writer import write


def rows(samples: int, width: int = 5) -> torch.Tensor:
    return torch.arange(samples * width, dtype=torch.int64).reshape(samples, width)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eleven samples in shards of four, four and three."""
    write(ArrayDataset(rows(11)), tmp_path / "shards", samples_per_shard=4)
    return tmp_path / "shards"


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 17), st.integers(1, 20), st.data())
def test_any_part_holds_its_samples(
    tmp_path_factory: pytest.TempPathFactory, samples: int, per_shard: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("any") / "shards"
    write(ArrayDataset(rows(samples)), path, samples_per_shard=per_shard)
    start = data.draw(st.integers(0, samples))
    stop = data.draw(st.integers(start, samples))
    part = ShardedArrays(path).part(start, stop)
    assert [row.tolist() for row in part] == rows(samples)[start:stop].tolist()
    assert torch.equal(part.in_memory(), rows(samples)[start:stop])
    shards_met = {index // per_shard for index in range(start, stop)}
    assert len(part.files_for(start, stop)) == len(shards_met)


SAMPLES: list[Any] = [
    torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    torch.tensor([True, False, True]),
    torch.tensor(3, dtype=torch.uint16),
    torch.zeros(0, 3),
    (torch.zeros(3, dtype=torch.uint8), torch.ones(2, dtype=torch.float64)),
    {"image": torch.zeros(5, dtype=torch.uint8), "boxes": torch.rand(2, 4), "odd name/..": torch.tensor(1)},
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_structure_and_dtype_comes_back(sample: Any, tmp_path: Path) -> None:
    write([sample, sample, sample], tmp_path / "s", samples_per_shard=2)
    for read in (ShardedArrays(tmp_path / "s")[2], open_dataset(DatasetSpec(str(tmp_path / "s")))[2]):
        torch.testing.assert_close(read, sample, rtol=0, atol=0)


def test_numbers_and_arrays_become_tensors(tmp_path: Path) -> None:
    write([(np.zeros((2, 3), np.float32), 7, 0.5, True, np.int8(3))] * 2, tmp_path / "s")
    sample = ShardedArrays(tmp_path / "s")[1]
    assert [value.dtype for value in sample] == [
        torch.float32, torch.int64, torch.float32, torch.bool, torch.int8
    ]  # fmt: skip
    assert [value.tolist() for value in sample[1:]] == [7, 0.5, True, 3]


def test_a_folder_is_a_dataset_in_memory_and_mapped(folder: Path) -> None:
    spec = DatasetSpec(str(folder))
    for dataset in (open_dataset(spec), open_dataset(spec, mapped=True)):
        assert torch.equal(torch.stack(list(dataset)), rows(11))  # type: ignore[call-overload]
    facts = facts_without_building(spec)
    assert facts is not None
    assert (facts.samples, facts.dataset_bytes) == (11, 11 * 40)
    assert facts.sample == {"kind": "tensor", "dtype": "int64", "shape": [5], "high": 4}
    assert [Path(file).name for file in facts.files] == [f"shard-0000{k}.safetensors" for k in range(3)]


def test_shards_are_safetensors_that_others_can_read(folder: Path) -> None:
    from safetensors.torch import load_file

    assert torch.equal(load_file(folder / "shard-00001.safetensors")["data"], rows(11)[4:8])


@pytest.mark.parametrize("index", [-1, 11, 10**9])
def test_indices_outside_are_refused(folder: Path, index: int) -> None:
    with pytest.raises(IndexError):
        ShardedArrays(folder)[index]


def opened_files(code: str, folder: Path) -> list[str]:
    """Shards that a fresh process has mapped after running ``code`` with ``dataset`` over the folder."""
    program = (
        "import sys; from shardlab.shards.reader import ShardedArrays\n"
        f"dataset = ShardedArrays({str(folder)!r}); {code}\n"
        "maps = open('/proc/self/maps').read().split()\n"
        "print(*sorted({w.rpartition('/')[2] for w in maps if w.endswith('.safetensors')}))"
    )
    return subprocess.check_output([sys.executable, "-c", program], text=True).split()


def test_only_the_shards_that_are_read_are_opened(folder: Path) -> None:
    assert opened_files("part = dataset.part(5, 9); list(part)", folder) == [
        "shard-00001.safetensors", "shard-00002.safetensors"
    ]  # fmt: skip


def test_samples_are_views_and_writing_to_one_changes_neither_file_nor_other_readers(folder: Path) -> None:
    one, other = ShardedArrays(folder), ShardedArrays(folder)
    one[3].add_(100)
    assert one[3].tolist() == (rows(11)[3] + 100).tolist()
    assert other[3].tolist() == rows(11)[3].tolist()
    assert ShardedArrays(folder)[3].tolist() == rows(11)[3].tolist()


def test_a_part_travels_by_path_and_opens_anew(folder: Path) -> None:
    part = ShardedArrays(folder).part(2, 9)
    part[0]
    sent = pickle.dumps(part)
    assert len(sent) < 500
    assert [row.tolist() for row in pickle.loads(sent)] == rows(11)[2:9].tolist()


def test_dataloader_workers_read_all_samples(folder: Path) -> None:
    loader = DataLoader(ShardedArrays(folder), batch_size=4, num_workers=2)
    assert torch.equal(torch.cat(list(loader)), rows(11))


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_shard_that_is_cut_while_it_is_mapped_is_named(tmp_path: Path) -> None:
    write([torch.full((4096,), number, dtype=torch.uint8) for number in range(64)], tmp_path / "out")
    script = (
        "import os, sys; from shardlab.errors import RunFailed; from shardlab.shards.reader import ShardedArrays\n"
        "dataset = ShardedArrays(sys.argv[1]); int(dataset[0].sum())\n"
        "os.truncate(dataset.files_for(0, 1)[0], 8192)\n"
        "try: int(dataset[50].sum())\n"
        "except RunFailed as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert "shard" in done.stdout and "truncated or replaced" in done.stdout


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (flip_last_byte, "damaged"),
    (truncate, "truncated or replaced"),
    (lambda path: os.truncate(path, 0), "truncated or replaced"),
    (lambda path: path.write_bytes(path.read_bytes() + b"x"), "truncated or replaced"),
    (lambda path: path.write_bytes(bytes(path.stat().st_size)), "damaged"),
    (Path.unlink, "missing|cannot be opened"),
    (make_folder, "not a regular file|cannot be opened"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGES)
@pytest.mark.parametrize("already_open", [False, True])
def test_damage_is_named_with_its_shard(
    folder: Path, damage: Callable[[Path], Any], why: str, already_open: bool
) -> None:
    dataset = ShardedArrays(folder) if already_open else None
    damage(folder / "shard-00001.safetensors")
    with pytest.raises(RunFailed, match=rf"shard-00001\.safetensors.*({why})"):
        (dataset or ShardedArrays(folder))[5]


def test_damage_in_one_shard_leaves_the_others_readable(folder: Path) -> None:
    flip_last_byte(folder / "shard-00001.safetensors")
    assert ShardedArrays(folder)[0].tolist() == rows(11)[0].tolist()


def test_a_shard_replaced_after_it_was_verified_is_verified_again(folder: Path) -> None:
    ShardedArrays(folder)[0]
    path = folder / "shard-00000.safetensors"
    flip_last_byte(path)
    os.utime(path, ns=(0, 0))  # a clock too coarse to tell the two writes apart would hide the second
    with pytest.raises(RunFailed, match="damaged"):
        ShardedArrays(folder)[0]


def test_verification_can_be_left_out(folder: Path) -> None:
    flip_last_byte(folder / "shard-00000.safetensors")
    assert len(list(ShardedArrays(folder, verify=False))) == 11


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 8,
        (2**62).to_bytes(8, "little"),
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"\xff\xfe{}",
        (58).to_bytes(8, "little") + b'{"data":{"dtype":"I64","shape":[4,5],"data_offsets":[0,99]}',
        (62).to_bytes(8, "little") + b'{"data":{"dtype":"I64","shape":[4,5],"data_offsets":[-8,152]}}',
    ],
)
def test_a_header_that_contradicts_the_manifest_is_refused(folder: Path, header: bytes) -> None:
    path = folder / "shard-00000.safetensors"
    path.write_bytes(header + path.read_bytes()[len(header) :])
    with pytest.raises(RunFailed, match=r"shard-00000\.safetensors"):
        ShardedArrays(folder, verify=False)[0]

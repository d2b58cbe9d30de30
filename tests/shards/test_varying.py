"""Fields whose length differs come back as they were: shapes, text and bytes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from shardlab.dataset import DatasetSpec, open_dataset
from shardlab.errors import RunFailed, UsageError
from shardlab.shards.manifest import load
from shardlab.shards.reader import ShardedArrays
from shardlab.shards.writer import write
from shardlab.store._pack import pack, unpack

SHAPES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=12)
SAMPLES = st.lists(
    st.tuples(st.text(max_size=6), st.binary(max_size=6), st.integers(0, 5)), min_size=1, max_size=12
)


def samples_of(drawn: list[tuple[str, bytes, int]]) -> list[dict[str, Any]]:
    return [
        {"tokens": torch.arange(length, dtype=torch.int32) + place, "name": text, "raw": raw, "label": place}
        for place, (text, raw, length) in enumerate(drawn)
    ]


def same(found: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return found.keys() == right.keys() and all(same(found[key], right[key]) for key in right)
    if isinstance(right, torch.Tensor):
        return found.dtype == right.dtype and torch.equal(found, right)
    if isinstance(right, int):
        return found.item() == right
    return type(found) is type(right) and found == right


@settings(max_examples=40, deadline=None)
@given(SAMPLES, st.integers(1, 5), st.data())
def test_text_bytes_and_tensors_of_any_length_come_back(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any, per_shard: int, data: st.DataObject
) -> None:
    path, samples = tmp_path_factory.mktemp("any") / "s", samples_of(drawn)
    write(samples, path, samples_per_shard=per_shard)
    first = data.draw(st.integers(0, len(samples)))
    last = data.draw(st.integers(first, len(samples)))
    part = ShardedArrays(path).part(first, last)
    for read in (list(part), list(part.columns()), list(open_dataset(DatasetSpec(str(path))))[first:last]):
        assert len(read) == last - first
        assert all(same(found, right) for found, right in zip(read, samples[first:last], strict=True))


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(1, 5), st.sampled_from([torch.uint8, torch.bfloat16, torch.bool, torch.float64]))
def test_any_axis_may_differ(
    tmp_path_factory: pytest.TempPathFactory, shapes: Any, per_shard: int, dtype: torch.dtype
) -> None:
    path = tmp_path_factory.mktemp("axes") / "s"
    samples = [torch.arange(a * b).reshape(a, b).to(dtype) for a, b in shapes]
    manifest = write(samples, path, samples_per_shard=per_shard)
    assert manifest.is_fixed == (len(set(shapes)) == 1)
    assert load(path) == manifest
    assert all(same(found, right) for found, right in zip(ShardedArrays(path), samples, strict=True))


def test_a_length_that_changes_only_after_the_first_shard_is_read_right(tmp_path: Path) -> None:
    samples = [
        torch.ones(3),
        torch.ones(3) * 2,
        torch.ones(1) * 3,
        torch.ones(0),
        torch.ones(2),
        torch.ones(2),
    ]
    write(samples, tmp_path / "s", samples_per_shard=2)
    dataset = ShardedArrays(tmp_path / "s")
    assert [row.tolist() for row in dataset] == [row.tolist() for row in samples]
    assert [row.tolist() for row in dataset.columns()] == [row.tolist() for row in samples]


def test_a_shard_holds_as_many_bytes_as_fit_when_samples_differ(tmp_path: Path) -> None:
    samples = [torch.zeros(size, dtype=torch.uint8) for size in (10, 20, 5, 40, 1, 1, 30)]
    manifest = write(samples, tmp_path / "s", shard_bytes=35)
    assert [shard.samples for shard in manifest.shards] == [3, 1, 3]


def test_a_sample_that_its_source_changes_afterwards_stays_as_it_was(tmp_path: Path) -> None:
    def reusing_a_buffer() -> Any:
        buffer = torch.zeros(2)
        for number in range(5):
            yield buffer.fill_(number)

    write(reusing_a_buffer(), tmp_path / "s", samples_per_shard=3)
    assert [row[0].item() for row in ShardedArrays(tmp_path / "s")] == [0, 1, 2, 3, 4]


def test_batches_hold_a_list_where_shapes_differ_and_stack_the_rest(tmp_path: Path) -> None:
    samples = samples_of([("a", b"", 2), ("bc", b"x", 0), ("", b"yz", 3)])
    write(samples, tmp_path / "s")
    dataset = ShardedArrays(tmp_path / "s")
    (batch,) = DataLoader(dataset, 3, collate_fn=dataset.collate_fn)
    assert [tokens.tolist() for tokens in batch["tokens"]] == [[0, 1], [], [2, 3, 4]]
    assert batch["name"] == ["a", "bc", ""]
    assert batch["raw"] == [b"", b"x", b"yz"]
    assert batch["label"].tolist() == [0, 1, 2]


def test_samples_in_memory_can_be_shared_as_one_buffer(tmp_path: Path) -> None:
    samples = samples_of([("name" * 100, b"raw" * 500, 5000), ("", b"", 0), ("x", b"y" * 900, 700)])
    write(samples, tmp_path / "s")
    dataset = open_dataset(DatasetSpec(str(tmp_path / "s")))
    buffers: list[Any] = []

    def allocate(nbytes: int) -> Any:
        buffers.append(torch.zeros(nbytes, dtype=torch.uint8).numpy())
        return buffers[0]

    packed = pack(dataset, allocate)
    assert len(packed.skeleton) < 20_000
    read = list(unpack(packed, buffers[0]))
    assert all(same(found, right) for found, right in zip(read, samples, strict=True))


def test_a_dataset_of_differing_lengths_travels_to_workers_by_path(tmp_path: Path) -> None:
    write([torch.zeros(size) for size in (1, 2, 3)], tmp_path / "s")
    sent = pickle.dumps(ShardedArrays(tmp_path / "s"))
    assert len(sent) < 500
    assert [len(row) for row in pickle.loads(sent)] == [1, 2, 3]


def test_a_tree_of_tensors_is_refused_for_samples_of_differing_lengths(tmp_path: Path) -> None:
    write([torch.zeros(1), torch.zeros(2)], tmp_path / "s")
    with pytest.raises(UsageError, match="one shape"):
        ShardedArrays(tmp_path / "s").in_memory()


def test_a_field_named_as_the_arrays_of_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"beside 'a'.*a\.ends"):
        write([{"a": "text", "a.ends": 1}], tmp_path / "s")
    assert not (tmp_path / "s" / "manifest.json").exists()


LIES: list[tuple[dict[str, Any], str]] = [
    ({"a.ends": [2, 1, 6]}, "ends do not divide"),
    ({"a.ends": [1, 3, 7]}, "ends do not divide"),
    ({"a.ends": [-1, 3, 6]}, "ends do not divide"),
    ({"a.shapes": [[1], [2], [4]]}, "shapes do not fit"),
    ({"a.shapes": [[1], [-2], [3]]}, "shapes do not fit"),
    ({"a.shapes": [[1, 1], [2, 1], [3, 1]]}, "shape"),
    ({"a.shapes": None}, "lacks the field"),
    ({"a.ends": None}, "lacks rows"),
    ({"a": [0.0] * 7}, "ends do not divide"),
]


@pytest.mark.parametrize(("lie", "why"), LIES)
def test_arrays_that_contradict_each_other_are_an_error_that_names_the_shard(
    tmp_path: Path, lie: dict[str, Any], why: str
) -> None:
    from safetensors.torch import load_file, save_file

    write([{"a": torch.ones(size, 1)[:, 0]} for size in (1, 2, 3)], tmp_path / "s")
    path = tmp_path / "s" / "shard-00000.safetensors"
    tensors = load_file(path)
    for name, value in lie.items():
        if value is None:
            tensors.pop(name)
        else:
            tensors[name] = torch.tensor(value, dtype=tensors[name].dtype)
    save_file(tensors, path)
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    manifest["shards"][0]["bytes"] = path.stat().st_size
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunFailed, match=rf"shard-00000\.safetensors.*{why}"):
        ShardedArrays(tmp_path / "s", verify=False)[0]

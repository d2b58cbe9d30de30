"""What users and disks may hand in: any manifest, results file or flags. An error is told, never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab import compare, predict, profile, report, shard, watch
from shardlab.analysis import load as load_results
from shardlab.csvlog import append, read_rows
from shardlab.dataset._arrays import ArrayDataset
from shardlab.errors import RunFailed, UsageError
from shardlab.records import Memory
from shardlab.shards.manifest import NAME, load
from shardlab.shards.writer import write

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("float32"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def shards() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        write(ArrayDataset(torch.zeros(7, 3)), Path(folder, "s"), samples_per_shard=4, source="zeros")
        yield Path(folder, "s")


def places(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Of a JSON document: the way to every value in it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*above, key)
        yield from places(inner, (*above, key))


def read_or_refuse(folder: Path, content: bytes) -> None:
    """Load the folder with this manifest in the place of its own."""
    own = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(content)
    try:
        manifest = load(folder)
        assert manifest.samples == sum(one.samples for one in manifest.shards)
    except (UsageError, RunFailed) as error:
        assert str(error)
    finally:
        (folder / NAME).write_bytes(own)


@settings(deadline=None)
@given(st.data(), JSON)
def test_a_manifest_with_any_value_in_it_is_right_or_refused(shards: Path, data: st.DataObject, value: Any) -> None:
    document = json.loads((shards / NAME).read_bytes())
    *above, last = data.draw(st.sampled_from(list(places(document))))
    inner = document
    for key in above:
        inner = inner[key]
    inner[last] = value
    read_or_refuse(shards, json.dumps(document).encode())


@settings(deadline=None)
@given(st.binary(max_size=64), st.integers(0, 400))
def test_a_manifest_of_any_bytes_is_refused(shards: Path, content: bytes, cut: int) -> None:
    own = (shards / NAME).read_bytes()
    for wrong in (content, own[:cut], own[:cut] + content + own[cut:]):
        read_or_refuse(shards, wrong)


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_a_results_file_of_any_bytes_is_read_or_refused(content: bytes, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        append(Path(folder), "memory.csv", [Memory(rss_bytes=5), Memory(pss_bytes=7)])
        file = Path(folder, "memory.csv")
        own = file.read_bytes()
        for wrong in (content, own[:cut] + content + own[cut:]):
            file.write_bytes(wrong)
            assert all(isinstance(row, dict) for row in read_rows(file))
            with contextlib.suppress(RunFailed, UsageError):
                load_results(folder)


FLAGS = [
    "--nproc", "--dataset", "--sampler", "--store", "--workers", "--batch-size", "--repeats", "--limit", "--pid",
    "--", "-h", "--samplers", "--max-copies", "--json",
    "--no-shuffle", "--compute", "-o", "--tail", "--epochs", "--nnodes",
]  # fmt: skip
VALUES = [
    "0", "-1", "1e9", "nan", "inf", "", "mnist:x", "synthetic:", "records:0", "../..", "keyed", "private", "\x00",
    "é", "5ms",
]  # fmt: skip


@pytest.mark.parametrize("command", [profile, compare, predict, report, shard, watch])
@settings(max_examples=40, deadline=None)
@given(flags=st.lists(st.sampled_from(FLAGS) | st.sampled_from(VALUES) | st.text(max_size=4), max_size=5))
def test_any_flags_end_with_usage_or_help(command: Any, flags: list[str]) -> None:
    # a value that no flag allows: nothing is ever started
    argv = [*flags, "--no-such-flag"] if "--" not in flags else ["--no-such-flag", *flags]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            code = command.main(argv)
        except SystemExit as ended:
            code = ended.code
    assert code in (0, 2)
    assert "Traceback" not in said.getvalue()
    assert said.getvalue()

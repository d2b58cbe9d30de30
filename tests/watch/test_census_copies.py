"""``--census``: copies by content beside copies by memory, on every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import profile


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "store", "copies"),
    [
        ("distributed", "private", 4), ("distributed", "shared", 1), ("distributed", "mmap", 1),
        ("distributed", "inherited", 1), ("keyed", "shared", 1), ("ring", "shared", 1), ("accelerate", "reader", 1),
    ],
)  # fmt: skip
def test_content_and_memory_agree_within_five_percent(sampler: str, store: str, copies: int, tmp_path: Path):
    flags = ("--sampler", sampler, "--store", store, "--nproc", 4, "--warmup", 0, "--census")
    row = profile(*flags, results=tmp_path).row
    assert row["census_copies"] == pytest.approx(copies, rel=0.05)
    assert row["census_copies"] == pytest.approx(row["copies"], rel=0.05)
    assert row["census_cpu_s"] > 0


def test_copies_of_objects_are_not_counted_by_content(tmp_path: Path):
    flags = ("--dataset", "records:2k", "--nproc", 1, "--warmup", 0, "--census", "--start-method", "forkserver")
    row = profile(*flags, "--no-control", results=tmp_path).row
    assert row["census_copies"] is None
    assert "census_copies: equal Python objects differ by page" in row["reason"]

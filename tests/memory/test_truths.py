"""Copies of datasets whose number is known, by arithmetic or from public reports, through the command."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from command import Ended, profile

MIB = 1 << 20
TRUTHS = Path(__file__).with_name("truths.py")
ONE = pytest.approx(1, abs=0.05)
FOUR = pytest.approx(4, abs=0.1)
QUICK = ("--nproc", 2, "--start-method", "forkserver")

slow = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path):
    """Run the command with its results in a folder of this test."""
    return lambda *flags: profile(*flags, results=tmp_path / "results")


@pytest.fixture(scope="module")
def npy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """256 MiB of float32 in rows of 4 KiB, gone after the tests that read it."""
    path = tmp_path_factory.mktemp("npy") / "rows.npy"
    np.save(path, np.random.default_rng(0).random((64 * 1024, 1024), np.float32))
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def dispatched(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Four ranks, each with an array of its own, of which rank 0 alone reads."""
    flags = ("--sampler", "accelerate", "--dataset", f"{TRUTHS}:array", "--nproc", 4)
    return profile(*flags, results=tmp_path_factory.mktemp("dispatched"))


@pytest.fixture
def stranger(npy: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of another user of the file: maps it, has read every page of it, and waits."""
    code = (
        "import sys, mmap\n"
        "file = open(sys.argv[1], 'rb')\n"
        "map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        f"sum(map[i] for i in range(0, len(map), {mmap.PAGESIZE}))\n"
        "print('read', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(npy)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "read\n"
        yield process
        assert process.stdin and process.poll() is None, "it was to map the file all the time"
        process.stdin.close()


def rss_copies(ended: Ended) -> float:
    """What the sum of RSS would have said."""
    return sum(rank["rss_bytes"] for rank in ended.row["ranks"]) / ended.row["dataset_bytes"]


# A copy in every rank.


@pytest.mark.parametrize("nproc", [pytest.param(1, marks=slow), 2])
def test_private_holds_as_many_copies_as_ranks(run, nproc: int):
    row = run("--dataset", "synthetic:128MiB", "--nproc", nproc, "--start-method", "forkserver").row
    assert row["copies"] == pytest.approx(nproc, abs=0.1)
    assert row["copies_low"] < row["copies"] < row["copies_high"]


@slow
@pytest.mark.parametrize("sampler", ["distributed", "accelerate", "accelerate-shard", "accelerate-split"])
def test_four_private_ranks_hold_four_copies_whoever_reads(run, sampler: str):
    ended = run("--sampler", sampler, "--dataset", "synthetic:256MiB", "--nproc", 4)
    assert ended.row["copies"] == FOUR
    assert "holds 4.0 copies" in ended.said


@slow
def test_an_array_built_in_every_rank_is_four_copies_under_accelerate(dispatched: Ended):
    """accelerate#3001 and #1486."""
    assert dispatched.row["copies"] == pytest.approx(4, abs=0.15)


@slow
def test_an_array_built_in_every_rank_is_four_copies_under_accelerate_shard(run):
    """accelerate#3001 and #1486."""
    row = run("--sampler", "accelerate-shard", "--dataset", f"{TRUTHS}:array", "--nproc", 4).row
    assert row["copies"] == pytest.approx(4, abs=0.15)


@slow
def test_ranks_that_hold_a_dataset_and_never_read_it_are_named(dispatched: Ended):
    assert [rank["reads"] for rank in dispatched.row["ranks"]][1:] == [0, 0, 0]
    assert "Ranks 1-3 never read theirs" in dispatched.said


@slow
def test_what_the_allocator_keeps_of_a_stacked_list_is_no_copy(run):
    row = run("--dataset", f"{TRUTHS}:stacked", "--nproc", 4).row
    assert row["copies"] == FOUR
    assert row["retained_bytes"] > 128 * MIB


@slow
def test_mnist_in_four_ranks_is_four_copies_and_every_sample_arrives(run):
    if not os.environ.get("SHARDLAB_DATA"):
        pytest.skip("SHARDLAB_DATA names no folder with MNIST")
    row = run("--dataset", "mnist", "--sampler", "accelerate-shard", "--nproc", 4).row
    assert 3.8 < row["copies"] < 4.35
    assert (row["samples"], row["distinct"], row["missing"]) == (60_000, 60_000, 0)


# One copy per node.


@pytest.mark.parametrize("store", ["shared", "mmap"])
def test_two_ranks_with_a_common_store_hold_one_copy(run, store: str):
    ended = run("--store", store, "--dataset", "synthetic:128MiB", *QUICK)
    assert ended.row["copies"] == ONE
    assert "nothing to save" in ended.said


@slow
@pytest.mark.parametrize(
    ("sampler", "store"),
    [
        ("distributed", "shared"), ("accelerate", "shared"), ("accelerate-shard", "shared"),
        ("distributed", "mmap"), ("accelerate", "mmap"), ("accelerate-shard", "mmap"),
        ("accelerate", "reader"),
    ],
)  # fmt: skip
def test_four_ranks_that_share_hold_one_copy(run, sampler: str, store: str):
    row = run("--sampler", sampler, "--store", store, "--dataset", "synthetic:256MiB", "--nproc", 4).row
    assert 0.97 <= row["copies"] <= 1.05


@slow
@pytest.mark.parametrize("store", ["shared", "mmap", "reader"])
def test_sharing_makes_one_copy_of_an_array_built_in_every_rank(run, store: str):
    """accelerate#3001: the cure. A dispatching rank keeps some 3 MiB more after many steps than after few."""
    flags = ("--sampler", "accelerate", "--dataset", f"{TRUTHS}:array", "--nproc", 4)
    assert run(*flags, "--store", store).row["copies"] == pytest.approx(1, abs=0.15)


def test_a_reader_store_is_refused_where_every_rank_reads(run):
    ended = run("--sampler", "accelerate-shard", "--store", "reader")
    assert (ended.code, ended.object) == (2, None)
    for part in ("--store must fit --sampler accelerate-shard", "every rank reads", "'reader'", "Cure:"):
        assert part in ended.stderr


@slow
@pytest.mark.parametrize("store", ["shared", "mmap"])
def test_a_common_copy_counts_whole_where_a_quarter_was_read(run, store: str):
    steps = 256 * MIB // (3 * 224 * 224) // 4 // (4 * 32)
    flags = ("--store", store, "--dataset", "synthetic:256MiB", "--nproc", 4, "--no-shuffle", "--warmup", 0)
    row = run(*flags, "--max-steps", steps).row
    assert row["delivered"] < 0.3 * row["samples"]
    assert 0.97 <= row["copies"] <= 1.05


@slow
def test_a_mapped_file_is_one_copy_though_every_rank_seems_to_hold_it(run, npy: Path):
    """discuss.pytorch.org/t/165601."""
    ended = run("--dataset", npy, "--store", "mmap", "--nproc", 4)
    assert 0.97 <= ended.row["copies"] <= 1.05
    assert ended.row["dataset_bytes"] == 256 * MIB
    assert rss_copies(ended) > 3


@slow
def test_a_file_that_a_stranger_maps_too_is_one_copy(run, npy: Path, stranger):
    ended = run("--dataset", npy, "--store", "mmap", "--nproc", 2)
    assert 0.97 <= ended.row["copies"] <= 1.05


def test_an_inherited_array_is_one_copy(run):
    row = run("--store", "inherited", "--dataset", "synthetic:128MiB", "--nproc", 2).row
    assert row["copies"] == ONE


# Copies that workers make.


@slow
@pytest.mark.parametrize("persistent", ["--persistent-workers", "--no-persistent-workers"])
def test_reading_a_list_of_strings_in_forked_workers_copies_most_of_it(run, persistent: str):
    """pytorch#20433: a reference count is written for each string read, and 25 lie on a page.

    Each worker reads a quarter at random: 0.95 of the list, by its private pages in a bare fork.
    """
    flags = ("--nproc", 1, "--workers", 4, "--batch-size", 256, "--worker-start-method", "fork")
    ended = run("--dataset", f"{TRUTHS}:strings", *flags, persistent)
    assert 1 + 4 * 0.85 <= ended.row["copies"] <= 1 + 4 * 1.05
    assert "the workers of each rank hold theirs, most likely by reference counts after fork" in ended.said


@slow
def test_batches_in_flight_are_named_and_are_no_copies(run):
    """pytorch#62066."""
    flags = ("--nproc", 1, "--workers", 4, "--prefetch-factor", 4, "--batch-size", 4096)
    ended = run("--dataset", f"{TRUTHS}:Pixels", *flags)
    assert ended.row["copies"] == pytest.approx(1, abs=0.1)
    assert ended.row["inflight_bytes"] == 4 * 4 * 4096 * 784
    assert "Up to 49.0 MiB of batches are in flight from workers; those are no copies" in ended.said
    assert "duplicate." not in ended.said


@slow
def test_a_cache_of_images_is_sent_whole_to_each_worker_of_a_forkserver(run):
    """ultralytics#22307: ranks x (1 + workers)."""
    flags = ("--nproc", 2, "--workers", 2, "--worker-start-method", "forkserver")
    ended = run("--dataset", f"{TRUTHS}:images", *flags)
    assert ended.row["copies"] == pytest.approx(2 * (1 + 2), abs=0.3)
    assert "the workers of each rank hold theirs, sent to each" in ended.said


@slow
def test_records_in_forked_workers_are_more_copies_than_ranks(run):
    flags = ("--nproc", 2, "--workers", 2, "--worker-start-method", "fork")
    ended = run("--dataset", "records:200k", *flags)
    assert ended.row["copies"] > 3
    assert "More copies than ranks: the workers of each rank hold theirs" in ended.said


@slow
def test_inherited_objects_are_copied_as_they_are_read_and_rss_does_not_tell(run):
    """A rank reads a quarter of a million lists at random, and writes a reference count on every page of them.

    The head of a list takes 64 bytes; its two items lie on other pages, which stay shared.
    """
    flags = ("--dataset", f"{TRUTHS}:small_lists", "--store", "inherited", "--nproc", 4, "--warmup", 0)
    little = run(*flags, "--batch-size", 16, "--max-steps", 2)
    whole = run(*flags, "--batch-size", 256)
    own = (whole.row["copies"] - 1) * whole.row["dataset_bytes"] / 4
    assert own == pytest.approx(64 * 1_000_000, rel=0.1)
    assert little.row["copies"] < 1.5
    assert rss_copies(whole) == pytest.approx(rss_copies(little), rel=0.1)


# What cannot be told.


def test_a_small_dataset_has_no_copies_and_a_reason_with_the_figures(run):
    ended = run("--dataset", "synthetic:4MiB:1000", "--nproc", 1, "--start-method", "forkserver")
    assert ended.row["copies"] is None
    assert re.search(r"(^|; )copies: [^;]*\b4\.0 MiB\b[^;]*\b\d+ MiB\b", ended.row["reason"])
    assert re.search(r"copies of the dataset not known: the dataset holds 4\.0 MiB", ended.said)

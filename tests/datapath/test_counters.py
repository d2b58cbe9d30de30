"""What each path really delivers and reads, in figures worked out by hand or reported in public.

n = 37, three ranks, batches of four: three full rounds of twelve, and sample 36 alone in the fourth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ranks import Ran, run, run_all
from shardlab.dataset import DatasetSpec, open_dataset
from shardlab.shards import writer

ROUNDS = {
    ("distributed", "pad"): (39, 0, [13, 13, 13], [4, 4, 4]),
    ("distributed", "drop"): (36, 1, [12, 12, 12], [3, 3, 3]),
    ("accelerate", "pad"): (39, 0, [37, 0, 0], [4, 4, 4]),
    ("accelerate", "drop"): (36, 1, [36, 0, 0], [3, 3, 3]),
    ("accelerate-shard", "pad"): (48, 0, [16, 16, 16], [4, 4, 4]),
    ("accelerate-shard", "drop"): (36, 1, [12, 12, 12], [3, 3, 3]),
    ("accelerate-shard", "keep"): (37, 0, [13, 12, 12], [4, 3, 3]),
    ("accelerate-split", "pad"): (48, 0, [16, 16, 16], [4, 4, 4]),
    ("accelerate-split", "drop"): (36, 1, [12, 12, 12], [3, 3, 3]),
    ("accelerate-split", "keep"): (37, 0, [13, 12, 12], [4, 3, 3]),
    ("sharded", "pad"): (39, 0, [13, 13, 13], [4, 4, 4]),
    ("sharded", "drop"): (36, 1, [12, 12, 12], [3, 3, 3]),
    ("sharded", "keep"): (37, 0, [12, 12, 13], [3, 3, 4]),
}
"""delivered, missing, reads by rank, steps by rank"""

FIRST_AND_LAST_BATCH = {
    "distributed": [([0, 3, 6, 9], [36]), ([1, 4, 7, 10], [0]), ([2, 5, 8, 11], [1])],
    "accelerate": [([0, 1, 2, 3], [36]), ([4, 5, 6, 7], [0]), ([8, 9, 10, 11], [1])],
    "accelerate-shard": [
        ([0, 1, 2, 3], [36, 0, 1, 2]), ([4, 5, 6, 7], [3, 4, 5, 6]), ([8, 9, 10, 11], [7, 8, 9, 10])
    ],
    "accelerate-split": [
        ([0, 1, 2, 3], [36, 0, 1, 2]), ([4, 5, 6, 7], [3, 4, 5, 6]), ([8, 9, 10, 11], [7, 8, 9, 10])
    ],
    "sharded": [([0, 1, 2, 3], [0]), ([12, 13, 14, 15], [12]), ([24, 25, 26, 27], [36])],
}  # fmt: skip


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("shards") / "37")
    writer.write(open_dataset(DatasetSpec("synthetic:n=37:7")), folder, samples_per_shard=10)
    return folder


def figures(ran: Ran) -> tuple[int, int | None, list[Any], list[Any]]:
    (audit,) = ran.audits
    return audit.delivered, audit.missing, ran.by_rank("reads"), ran.by_rank("steps")


@pytest.mark.parametrize("path", FIRST_AND_LAST_BATCH)
def test_the_figures_of_a_size_that_does_not_divide(path: str, shards: str, tmp_path: Path) -> None:
    dataset = shards if path == "sharded" else "synthetic:n=37:7"
    tails = [tail for name, tail in ROUNDS if name == path]
    many = [
        {"sampler": path, "dataset": dataset, "nproc": 3, "batch_size": 4, "tail": tail, "shuffle": False}
        for tail in tails
    ]
    runs = run_all(tmp_path, many)
    for ran, tail in zip(runs, tails, strict=True):
        assert figures(ran) == ROUNDS[path, tail], tail
    assert [(steps[0], steps[-1]) for steps in runs[0].got()] == FIRST_AND_LAST_BATCH[path]


def test_ten_samples_for_four_ranks_by_distributed_sampler(tmp_path: Path) -> None:
    """A3, pytorch#25162."""
    ran = run(tmp_path, sampler="distributed", dataset="synthetic:n=10:7", nproc=4, batch_size=4)
    (audit,) = ran.audits
    assert (audit.delivered, audit.duplicates, audit.missing) == (12, 2, 0)
    assert ran.findings == []


def test_ten_samples_for_four_ranks_by_accelerate(tmp_path: Path) -> None:
    """A3, pytorch#25162."""
    flags = {"sampler": "accelerate-shard", "dataset": "synthetic:n=10:7", "nproc": 4, "batch_size": 4}
    even, uneven = run_all(tmp_path, [flags, flags | {"even_batches": False}])
    assert (even.audits[0].delivered, even.audits[0].duplicates) == (16, 6)
    assert even.by_rank("steps") == [1, 1, 1, 1]
    assert (uneven.audits[0].delivered, uneven.audits[0].duplicates) == (10, 0)
    assert uneven.by_rank("steps") == [1, 1, 1, 0]
    assert uneven.by_rank("delivered") == [4, 4, 2, 0]
    assert even.findings == uneven.findings == []


@pytest.mark.parametrize(
    ("path", "delivered", "reads"),
    [
        ("distributed", 20, [5, 5, 5, 5]),
        ("accelerate-shard", 32, [8, 8, 8, 8]),
        ("accelerate-split", 32, [8, 8, 8, 8]),
        ("accelerate", 20, [18, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("store", ["private", "shared"])
def test_eighteen_samples_for_four_ranks(
    path: str, delivered: int, reads: list[int], store: str, tmp_path: Path
) -> None:
    """A4: what is delivered and what is read are two figures."""
    ran = run(
        tmp_path, sampler=path, store=store, dataset="synthetic:n=18:7", nproc=4, batch_size=4, shuffle=False
    )
    (audit,) = ran.audits
    assert (audit.delivered, audit.distinct, audit.duplicates) == (delivered, 18, delivered - 18)
    assert ran.by_rank("reads") == reads
    assert ran.by_rank("steps") == ran.by_rank("len_reported") == [2, 2, 2, 2]
    assert ran.findings == []


@pytest.mark.parametrize("store", ["private", "shared", "reader"])
def test_workers_of_a_rank_that_only_receives_read_what_nobody_gets(store: str, tmp_path: Path) -> None:
    """A9, accelerate#2179: two workers fetch two batches of four ahead, on the rank that is sent its own."""
    ran = run(
        tmp_path, sampler="accelerate", store=store, dataset="synthetic:n=200:7", nproc=2, batch_size=4,
        workers=2, compute="5ms",
    )  # fmt: skip
    assert ran.by_rank("reads") == [200, 16]
    assert [sum(report.reads_by_worker) for report in ran.reports] == [200, 16]
    assert ran.reports[1].reads_by_worker == (0, 8, 8)
    (audit,) = ran.audits
    assert (audit.delivered, audit.distinct, audit.missing) == (200, 200, 0)
    assert ran.findings == []


def test_a_worker_reads_for_its_rank_and_the_rank_itself_reads_nothing(tmp_path: Path) -> None:
    ran = run(tmp_path, sampler="distributed", dataset="synthetic:n=48:7", nproc=2, batch_size=4, workers=3)
    assert [report.reads_by_worker for report in ran.reports] == [(0, 8, 8, 8), (0, 8, 8, 8)]


def test_reads_are_of_their_own_epoch(tmp_path: Path) -> None:
    ran = run(
        tmp_path, sampler="distributed", dataset="synthetic:n=24:7", nproc=2, batch_size=4, warmup=2, epochs=2
    )
    assert [report.row.reads for report in ran.reports] == [12] * 4
    assert [report.row.epoch for report in ran.reports] == [2, 2, 3, 3]


def test_an_epoch_that_is_cut_short_counts_what_came_and_blames_nobody(tmp_path: Path) -> None:
    ran = run(tmp_path, sampler="distributed", dataset="synthetic:n=48:7", nproc=2, batch_size=4, max_steps=2)
    (audit,) = ran.audits
    assert (audit.delivered, audit.distinct, audit.missing) == (16, 16, 32)
    assert ran.by_rank("steps") == [2, 2]
    assert ran.findings == []


@pytest.mark.parametrize("even_batches", [True, False])
def test_a_lie_of_upstream_about_len_is_named_with_its_rank(even_batches: bool, tmp_path: Path) -> None:
    """A2, accelerate#4122: 3 samples, batches of two for two ranks in all, split."""
    ran = run(
        tmp_path, sampler="accelerate-split", dataset="synthetic:n=3:7", nproc=2, batch_size=1,
        even_batches=even_batches, shuffle=False,
    )  # fmt: skip
    assert ran.by_rank("len_reported") == [2, 2]
    assert ran.by_rank("steps") == ([2, 2] if even_batches else [2, 1])
    named = [(f.name, f.rank) for audit in ran.audits for f in audit.findings]
    assert named == ([] if even_batches else [("length", 1)])

"""An epoch on four ranks by every way of feeding them: the seconds of the slowest rank, as the ranks measure them.

``pytest tests/benchmarks/test_data_paths.py --benchmark-enable -k "784 and four" --benchmark-columns=median,iqr``.
A round is a run of ``shardlab.profile``: ranks, readers and control in fresh processes, every byte of every batch
read; ``--benchmark-min-rounds`` says how many. ``extra_info`` has by round what it cost: copies, reads by rank.
Rounds of one path follow each other; for ratios of interleaved pairs see ``experiments/data_paths.py``.

pytest-benchmark's figure is the difference between two looks at a clock, one before the call and one after it.
The clock here stands still while processes start, build and end, and is put forward by what the slowest rank
says of its epoch: ``pedantic`` looks twice in a round, so the difference is that figure and nothing else, and
statistics, ``--benchmark-save`` and ``--benchmark-compare`` are pytest-benchmark's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from four_ranks import WORLD, Clock, Row, Run, measured, unmeasured

from shardlab.dataset import DatasetSpec, open_dataset
from shardlab.shards import writer

CLOCK = Clock()
STOCK = Path(__file__).parents[2] / "experiments" / "stock_loader.py"
INFO = ("copies", "copies_low", "copies_high", "duplicates", "delivered", "distinct", "samples_per_s")
KNOWS_COPIES = Path("/proc/self/smaps_rollup").exists()


@dataclass(frozen=True)
class Size:
    """An epoch is ``rounds`` full batches of all ranks, so that no path has anything to pad.

    ``flags`` end it early where the slowest path would take too long, and repeat it where it is short.
    """

    shape: str
    batch: int
    rounds: int
    flags: Row = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        return f"synthetic:n={self.rounds * self.batch * WORLD}:{self.shape}"

    @property
    def delivered(self) -> int:
        return int(self.flags.get("max_steps", self.rounds)) * self.batch * WORLD


SIZES = {  # 256 MiB each
    "784 B": Size("784", 64, 1338, {"max_steps": 300}),
    "150 KB": Size("3x224x224", 32, 14, {"epochs": 3}),
}
SMOKE = {"784 B": Size("784", 4, 5), "150 KB": Size("3x224x224", 2, 3)}


@dataclass(frozen=True, eq=False)
class Fed:
    """A way of feeding four ranks, and what must be so: how many read, and whether the node holds one copy."""

    question: str
    name: str
    flags: Row
    readers: int = WORLD
    one_copy: bool = False


FOUR, WORKERS, LOADER = "four ranks", "with workers", "stock DataLoader"
DISTRIBUTED, SHARD = {"sampler": "distributed"}, {"sampler": "accelerate-shard"}
SHARED, EACH = {"store": "shared"}, {"workers": 1}
PATHS = [
    Fed(FOUR, "distributed", DISTRIBUTED),
    Fed(FOUR, "accelerate", {"sampler": "accelerate"}, readers=1),
    Fed(FOUR, "accelerate-shard", SHARD),
    Fed(FOUR, "sharded", {"sampler": "sharded"}, one_copy=True),
    Fed(FOUR, "keyed", {"sampler": "keyed"}, one_copy=True),
    Fed(FOUR, "ring", {"sampler": "ring"}, readers=1, one_copy=True),
    Fed(WORKERS, "distributed, one each", DISTRIBUTED | EACH),
    Fed(WORKERS, "accelerate-shard, one each", SHARD | EACH),
    Fed(WORKERS, "keyed, one each", {"sampler": "keyed"} | EACH, one_copy=True),
    Fed(WORKERS, "ring, a pool of 4", {"sampler": "ring", "workers": 4}, readers=1, one_copy=True),
    Fed(LOADER, "distributed", DISTRIBUTED),
    Fed(LOADER, "distributed, one copy", DISTRIBUTED | SHARED, one_copy=True),
    Fed(LOADER, "keyed by sample", {"sampler": f"{STOCK}:by_sample"} | SHARED, one_copy=True),
    Fed(LOADER, "keyed by batch", {"sampler": f"{STOCK}:by_batch"} | SHARED, one_copy=True),
]


@pytest.fixture(scope="module")
def shards() -> Iterator[Callable[[str], str]]:
    """The folder that holds a dataset as shards."""
    with TemporaryDirectory(prefix="shardlab-bench-") as parent:
        yield cache(partial(write_shards, parent))


def write_shards(parent: str, dataset: str) -> str:
    folder = f"{parent}/{dataset.replace(':', '-')}"
    writer.write(open_dataset(DatasetSpec(dataset)), folder)
    return folder


def flags_of(path: Fed, size: Size, shards: Callable[[str], str]) -> Row:
    dataset = shards(size.dataset) if path.name == "sharded" else size.dataset
    return path.flags | size.flags | {"dataset": dataset, "nproc": WORLD, "batch_size": size.batch}


@pytest.fixture(scope="module")
def small(shards: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Fed, str], Run]:
    """A short epoch of each path and size."""
    cases = [(path, size) for path in PATHS for size in SMOKE]
    many = [flags_of(path, SMOKE[size], shards) for path, size in cases]
    return dict(zip(cases, unmeasured(many, tmp_path_factory.mktemp("small") / "runs"), strict=True))


def check(run: Run, path: Fed, size: Size) -> None:
    """Every sample once, fetched by whom it should be, out of as many copies as it should be."""
    assert (run.row["delivered"], run.row["duplicates"]) == (size.delivered, 0)
    assert not run.row.get("findings")  # of a measured run the exit code says so
    due = [size.delivered // path.readers] * path.readers + [0] * (WORLD - path.readers)
    if "max_steps" in size.flags:  # loaders had fetched ahead when the epoch was ended
        assert [had > 0 for had in run.reads] == [least > 0 for least in due]
        assert all(had >= least for had, least in zip(run.reads, due, strict=True))
    else:
        assert (run.row["missing"], run.reads) == (0, due)


def check_copies(run: Run, path: Fed) -> None:
    """Of a measured run, where the kernel tells. Many readers widen the interval, which then has to hold one copy."""
    if KNOWS_COPIES:
        assert run.row["copies"] is not None, run.row["reason"]
        assert run.row["copies"] <= 1.05 or run.row["copies_low"] <= 1 or not path.one_copy


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.question}: {path.name}")
def test_an_epoch(
    benchmark: Any, small: Any, path: Fed, size: str, shards: Any, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    runs = [small[path, size]]
    check(runs[0], path, SMOKE[size])
    if not benchmark.disabled:
        rounds = int(pytestconfig.getoption("benchmark_min_rounds"))
        runs = measured(flags_of(path, SIZES[size], shards), rounds, tmp_path)
        for run in runs:
            check(run, path, SIZES[size])
            check_copies(run, path)
        benchmark.group = f"{size}, {path.question}"
        benchmark.extra_info |= {name: [run.row[name] for run in runs] for name in INFO}
        benchmark.extra_info["reads_by_rank"] = [run.reads for run in runs]
    told = iter(runs)
    benchmark.pedantic(lambda: CLOCK.put_forward(next(told).slowest_s), rounds=len(runs))

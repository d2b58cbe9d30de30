"""How fast is every data path, by the bytes of a sample, the cost of reading it, and workers?

Hypothesis: `ring` and `keyed` are at least as fast as the best of torch's and Accelerate's paths wherever samples
cost nothing to read; where they do cost processor time and there are no workers, `keyed` is the equal of the best, as
each rank reads for itself, and `ring`, which has one reader, is slower by up to the number of cores.

How to read the answer: a row is one data path in one setting, four ranks; those of ours first, and of them the worst
first. ``over_best`` is its samples/s over those of ``best``, the fastest of the paths that are not ours there, the
median of rounds, ``low`` and ``high`` its 95 % bootstrap interval (none of fewer than five rounds). Samples without
cost are arrays (``synthetic``), the others come from a Dataset that spins (``costly_rows.py``). "2 workers" are two
for each rank, eight in all, with dispatch too, where those of rank 0 alone read; the ring has two readers in all.
`sharded` reads what lies on disk, so it is there where samples cost nothing. No control runs: copies are
data_paths.py's question. The ring's reader begins before the clock of an epoch does, so that its rate is too high by
about one part in the number of steps: 1 in 14 at 150 KB without cost, 1 in 24 and less elsewhere. Takes about 5
minutes, and an hour with --full, which has dispatch and the other paths too.

    python experiments/throughput.py [--full] [--rounds N] [--only TEXT]       (--full: all settings, all paths)
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import turns
from commandline import options, span
from publishing import publish
from shardlab.dataset import DatasetSpec, open_dataset
from shardlab.intervals import Median, Ratio
from shardlab.launch.summary import Outcome
from shardlab.shards import writer
from turns import Way

RANKS = 4
ROUNDS = 5
OURS = ("keyed", "ring", "sharded")
FEW = ("distributed", "accelerate-shard", "keyed", "ring")
ALL = ("distributed", "accelerate-shard", "accelerate-split", "accelerate", "keyed", "ring", "sharded")
SIZES = {"784 B": (784, 64), "12 KiB": (12 << 10, 32), "150 KB": (3 * 224 * 224, 32)}  # bytes of a sample; batch
COSTLY_BATCH = 8
COSTS_US = (0, 200, 2000)
STEPS = {0: 300, 200: 150, 2000: 24}  # of an epoch: half a second and more of the slower paths


@dataclass(frozen=True)
class Setting:
    """What is the same for all paths."""

    size: str
    cost_us: int
    workers: int

    def __str__(self) -> str:
        return f"{self.size}, {self.cost_us / 1000:g} ms, {self.workers} workers"

    @property
    def batch_size(self) -> int:
        """Fewer where a sample costs time: an epoch of a second has to have some steps."""
        return COSTLY_BATCH if self.cost_us else SIZES[self.size][1]

    def flags(self, path: str, shards: str) -> dict[str, Any]:
        """Paths that are quicker by far get more epochs, so that there is something to measure."""
        sample_bytes = SIZES[self.size][0]
        data = synthetic(self.size)
        if self.cost_us:
            data = f"{Path(__file__).parent / 'costly_rows.py'}:rows_{sample_bytes}_{self.cost_us}us"
        return {
            "sampler": path, "dataset": shards if path == "sharded" else data, "nproc": RANKS,
            "batch_size": self.batch_size, "workers": self.workers, "max_steps": STEPS[self.cost_us],
            "epochs": 1 if self.cost_us or path == "accelerate" else 6,
        }  # fmt: skip


def synthetic(size: str) -> str:
    """The dataset whose samples cost nothing."""
    return f"synthetic:256MiB:{SIZES[size][0]}"


def settings(full: bool) -> list[Setting]:
    """All, or the ends: the smallest and the largest samples at no cost, and costly ones without and with workers."""
    if full:
        return [Setting(*each) for each in product(SIZES, COSTS_US, (0, 2))]
    costly = [Setting("12 KiB", 2000, workers) for workers in (0, 2)]
    return [Setting("784 B", 0, 0), Setting("150 KB", 0, 0), *costly]


@dataclass(frozen=True)
class Row:
    """One data path in one setting."""

    name: str
    sampler: str
    sample_bytes: int
    item_cost_s: float
    workers: int
    batch_size: int
    ranks: int
    rounds: int
    samples_per_s: float
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    cpu_s_per_1k_samples: float | None
    best: str
    over_best: float
    low: float | None
    high: float | None


def main() -> None:
    """Setting by setting, all paths in turn; each setting is published as it ends."""
    given = options(__doc__, "all settings and paths", ROUNDS)
    rounds = given.rounds or ROUNDS
    rows: list[Row] = []
    for setting in settings(given.full):
        if given.only in str(setting):
            rows += measured(setting, ALL if given.full else FEW, rounds)
            print("\n".join(line(row) for row in rows if row.name.endswith(str(setting))), flush=True)
            publish("throughput.csv", rows, key="name", order=place)
    publish("throughput.csv", rows, key="name" if given.only else None, order=place)
    print("\nThe worst of ours first:")
    print("\n".join(line(row) for row in worst_first(rows) if row.sampler in OURS))
    picture()


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Ours by their ratio, then the others."""
    return sorted(rows, key=lambda row: place(asdict(row)))


def place(row: Mapping[str, Any]) -> tuple[bool, float]:
    """What the file is sorted by."""
    return row["sampler"] not in OURS, float(row["over_best"])


def measured(setting: Setting, paths: Sequence[str], rounds: int) -> Iterator[Row]:
    """The rows of one setting."""
    chosen = [path for path in paths if path != "sharded" or not setting.cost_us]
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        if "sharded" in chosen:
            writer.write(open_dataset(DatasetSpec(synthetic(setting.size))), shards)
        ways = [Way(setting.flags(path, str(shards))) for path in chosen]
        found = dict(zip(chosen, zip(*turns.in_turn(ways, rounds), strict=True), strict=True))
    yield from rows_of(setting, found)


def rows_of(setting: Setting, found: dict[str, tuple[Outcome, ...]]) -> Iterator[Row]:
    """A row for each path, all against the best of those that are not ours."""
    rates = {path: [turns.rate(outcome) for outcome in runs] for path, runs in found.items()}
    best = best_of(rates)
    for path, runs in found.items():
        rate, over = Median.of(rates[path]), Ratio.of(rates[path], rates[best])
        yield Row(
            f"{path}, {setting}", path, SIZES[setting.size][0], setting.cost_us / 1e6, setting.workers,
            setting.batch_size, RANKS,
            len(runs), rate.value, rate.low, rate.high, runs[-1].run.measured.cpu_s_per_1k_samples,
            best, over.value, over.low, over.high,
        )  # fmt: skip


def best_of(rates: dict[str, list[float]]) -> str:
    """The path with the highest median among those that are not ours."""
    return max((path for path in rates if path not in OURS), key=lambda path: Median.of(rates[path]).value)


def line(row: Row) -> str:
    """A row for the screen."""
    cpu = "" if row.cpu_s_per_1k_samples is None else f"  {row.cpu_s_per_1k_samples:8.4f} CPU s/1000"
    return (
        f"{row.name:44} {row.samples_per_s:11,.0f} samples/s{cpu}  {row.over_best:6.2f} x {row.best} "
        f"{span(row.low, row.high)}"
    )


def picture() -> None:
    """A line for each setting, a point for each path."""
    import figure  # matplotlib, which no rank has to load

    frame = figure.table("throughput.csv")
    frame["order"] = frame["sampler"].map(ALL.index)
    frame = frame.sort_values(["workers", "item_cost_s", "sample_bytes", "order"])
    frame["setting"] = frame["name"].str.partition(", ")[2]
    drawn, (ax,) = figure.panels(1, height=1.2 + 0.5 * frame["setting"].nunique())
    figure.points(ax, frame, "setting", "over_best", "sampler")
    figure.ratio_axis(ax, "samples/s over those of the best of torch's and Accelerate's paths")
    ax.set_ylabel("bytes of a sample, cost of reading it, workers")
    drawn.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    figure.save(drawn, "throughput.svg")


if __name__ == "__main__":
    main()

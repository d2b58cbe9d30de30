"""What does it cost that one rank reads for all, and what does it save?

Accelerate has two ways to feed ranks. Dispatching (``dispatch_batches=True``): rank 0 reads the global batch and
broadcasts it, each rank cuts its part out. Sharding: each rank reads its own batches. No figures of the two were
published; the project says that dispatching costs a synchronisation for each batch. Hypothesis: sharding is ten
times as fast and more where samples cost nothing to read, and still faster by the number of cores where they do; with
sharding each rank holds a copy and reads, with dispatching each holds a copy too, and one reads. `ring` and `keyed`
hold one copy at least at the speed of sharding where samples cost nothing to read.

How to read the answer: a row is one data path in one setting. ``batch_bytes`` is what a rank gets in a step (32
samples), ``item_cost_s`` processor seconds for each sample. Settings without cost read arrays (``synthetic``), which
`ring` and `keyed` gather at once. ``over_dispatch`` is its samples/s over those of `accelerate` (dispatch), the
median of rounds, ``low`` and ``high`` a 95 % bootstrap interval of it (none of fewer than five rounds). ``reads`` by
rank: `N 0 0 0` is one reader. ``copies`` are measured at 6 MiB a batch alone, once for each path, in a run of its
own; elsewhere the cell is empty. ``published`` is empty: ``source`` claims a side, of Accelerate's own two ways.
``agrees`` says whether sharding is on that side. The ring's reader begins before the clock of an epoch does, so that
its rate is too high by about one part in the number of steps: 1 in 16 at 6 MiB, less elsewhere. Takes about 5
minutes.

    python experiments/dispatch_or_shard.py [--full] [--rounds N] [--only TEXT]   (--full: all settings and paths)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import turns
from commandline import options, span
from field import NOTHING, Published, agreement
from publishing import publish
from shardlab.intervals import Median, Ratio
from shardlab.launch.summary import Outcome
from turns import Way

BATCH = 32
ROUNDS, MORE_ROUNDS = 5, 7
DISPATCH, SHARD = "accelerate", "accelerate-shard"
PATHS = (SHARD, DISPATCH, "ring", "keyed")
ALL_PATHS = ("distributed", *PATHS)
CLAIM = Published("Accelerate issue https://github.com/huggingface/accelerate/issues/1245, no figure", above_one=True)
KIB, MIB = 1 << 10, 1 << 20
DATASET_MIB = 384  # sixteen steps of four ranks at 6 MiB


@dataclass(frozen=True)
class Setting:
    """What is the same for all paths. ``steps`` of an epoch: half a second and more of dispatching."""

    batch_bytes: int
    cost_us: int
    world_size: int
    steps: int

    def __str__(self) -> str:
        size = f"{self.batch_bytes // KIB} KiB" if self.batch_bytes < MIB else f"{self.batch_bytes // MIB} MiB"
        return f"{size}, {self.cost_us} us, {self.world_size} ranks"

    def flags(self, path: str) -> dict[str, Any]:
        """Paths without dispatch take as many steps in a tenth of the time: they get more epochs."""
        item = self.batch_bytes // BATCH
        data = f"synthetic:{DATASET_MIB}MiB:{item}"
        if self.cost_us:
            data = f"{Path(__file__).parent / 'costly_rows.py'}:rows_{item}_{self.cost_us}us"
        epochs = 1 if path == DISPATCH or self.cost_us else 8
        return {
            "sampler": path, "dataset": data, "nproc": self.world_size, "batch_size": BATCH, "max_steps": self.steps,
            "epochs": epochs,
        }  # fmt: skip


FEW = [
    Setting(8 * KIB, 0, 4, 80), Setting(6 * MIB, 0, 4, 16), Setting(512 * KIB, 200, 4, 30),
]  # fmt: skip
ALL = [
    *FEW,
    Setting(512 * KIB, 0, 4, 80),
    Setting(8 * KIB, 0, 2, 150), Setting(512 * KIB, 0, 2, 100), Setting(6 * MIB, 0, 2, 32),
    Setting(8 * KIB, 200, 4, 30), Setting(6 * MIB, 200, 4, 30),
    Setting(8 * KIB, 200, 2, 60), Setting(512 * KIB, 200, 2, 60), Setting(6 * MIB, 200, 2, 60),
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One data path in one setting; rates in distinct samples per second."""

    name: str
    sampler: str
    batch_bytes: int
    item_cost_s: float
    world_size: int
    rounds: int
    samples_per_s: float
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    over_dispatch: float
    low: float | None
    high: float | None
    published: float | None
    source: str
    agrees: str
    cpu_s_per_1k_samples: float | None
    reads: str
    copies: float | None


def main() -> None:
    """Setting by setting, all paths in turn; each setting is published as it ends."""
    given = options(__doc__, "all settings and paths, seven rounds", ROUNDS)
    rounds = given.rounds or (MORE_ROUNDS if given.full else ROUNDS)
    rows: list[Row] = []
    for setting in ALL if given.full else FEW:
        if given.only in str(setting):
            rows += measured(setting, ALL_PATHS if given.full else PATHS, rounds)
            print("\n".join(line(row) for row in rows if row.name.endswith(f", {setting}")), flush=True)
            publish("dispatch_or_shard.csv", rows, key="name")
    publish("dispatch_or_shard.csv", rows, key="name" if given.only else None)
    picture()


def measured(setting: Setting, paths: Sequence[str], rounds: int) -> Iterator[Row]:
    """The rows of one setting."""
    ways = [Way(setting.flags(path)) for path in paths]
    of_path = dict(zip(paths, zip(*turns.in_turn(ways, rounds), strict=True), strict=True))
    copies = copies_of(setting, paths)
    for path, found in of_path.items():
        yield row_of(setting, path, found, of_path[DISPATCH], copies.get(path))


def copies_of(setting: Setting, paths: Sequence[str]) -> dict[str, float | None]:
    """Of each path; nothing in settings that do not ask. Apart from the rates: a control run takes as long again."""
    if setting.batch_bytes != 6 * MIB or setting.cost_us:
        return {}
    ways = [Way(setting.flags(path), control=True) for path in paths]
    (outcomes,) = turns.in_turn(ways, 1)
    return {path: outcome.run.measured.copies for path, outcome in zip(paths, outcomes, strict=True)}


def row_of(
    setting: Setting, path: str, found: tuple[Outcome, ...], dispatched: tuple[Outcome, ...], copies: float | None
) -> Row:
    """One path, and dispatch in the same rounds."""
    rates = [turns.rate(outcome) for outcome in found]
    each, over = Median.of(rates), Ratio.of(rates, [turns.rate(outcome) for outcome in dispatched])
    said = CLAIM if path == SHARD else NOTHING
    last = found[-1].run.measured
    return Row(
        f"{path}, {setting}", path, setting.batch_bytes, setting.cost_us / 1e6, setting.world_size, len(found),
        each.value, each.low, each.high, over.value, over.low, over.high,
        said.ratio, said.source, agreement(over.value, said),
        last.cpu_s_per_1k_samples, turns.reads(found[-1]), copies,
    )  # fmt: skip


def line(row: Row) -> str:
    """A row for the screen."""
    copies = "" if row.copies is None else f"  {row.copies:.2f} copies"
    return (
        f"{row.name:44} {row.samples_per_s:11,.0f} samples/s  {row.over_dispatch:6.2f} x dispatch "
        f"{span(row.low, row.high)}  reads {row.reads}{copies}"
    )


def picture() -> None:
    """A line for each setting, a point for each path."""
    import figure  # matplotlib, which no rank has to load

    frame = figure.table("dispatch_or_shard.csv").sort_values(["world_size", "item_cost_s", "batch_bytes"])
    frame["setting"] = frame["name"].str.partition(", ")[2]
    drawn, (ax,) = figure.panels(1, height=1.2 + 0.55 * frame["setting"].nunique())
    figure.points(ax, frame, "setting", "over_dispatch", "sampler")
    figure.ratio_axis(ax, "samples/s over those of accelerate (dispatch)")
    ax.set_ylabel("batch of a rank, cost of a sample, ranks")
    drawn.legend(loc="outside upper center", ncols=5)
    figure.save(drawn, "dispatch_or_shard.svg")


if __name__ == "__main__":
    main()

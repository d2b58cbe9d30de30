"""How long does the first batch take when a dataset is handed to DataLoader workers?

Hypothesis: a list is pickled to each worker that is spawned or comes from a forkserver, one after the other, so that
the time grows in proportion to workers; with fork it is nothing. An array crosses faster and still once for each
worker, a tensor once in all (torch moves it into shared memory), a shared one (``shardlab.share``) never: what is
left is that each worker imports torch.

How to read the answer: each row is one way, every repetition in fresh processes, all ways in turn, ``low`` and
``high`` 95 % bootstrap intervals of the median (none of fewer than five rounds). ``over_one_worker`` is the time over
that of the same with one worker, ``over_fork`` over that with fork, ``over_shared`` over that of the shared form.
``published`` is the source's ``over_one_worker``, with 8 workers and spawn, the only one it has figures for;
``agrees`` compares these two. Takes about 5 minutes, of 16 MiB and spawned workers, and of a list with forked ones;
with --full an hour and more.

    python experiments/shipping.py [--full] [--rounds N] [--only TEXT]      (--full: all sizes, workers and starts)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import fresh
from commandline import options
from field import NOTHING, Published, agreement
from publishing import publish
from shardlab.intervals import Median

ROUNDS = 5
METHODS = ("fork", "forkserver", "spawn")
FORMS = ("list", "numpy", "tensor", "shared")
SPDL = "SPDL examples/benchmark_ipc_dataloader.py, https://github.com/facebookresearch/spdl"
PUBLISHED = {16: Published(SPDL, 22.4 / 2.9), 128: Published(SPDL, 28.3 / 3.8)}  # seconds, 8 workers over 1


@dataclass(frozen=True)
class Way:
    """One form of a dataset of ``mib``, handed to so many workers."""

    form: str
    method: str
    workers: int
    mib: int

    def __str__(self) -> str:
        return f"{self.form}, {self.method}, {self.workers} workers, {self.mib} MiB"

    @property
    def published(self) -> Published:
        """What the field says of it."""
        of_the_source = self.form == "list" and self.method == "spawn" and self.workers == 8
        return PUBLISHED[self.mib] if of_the_source else NOTHING


def ways(full: bool) -> list[Way]:
    """All of them, or the smaller size with spawned workers, and the source's own case."""
    if not full:
        spawned = [Way(form, "spawn", n, 16) for n in (1, 2) for form in FORMS]
        return [*spawned, Way("list", "fork", 2, 16), Way("list", "spawn", 8, 16)]
    every = product((16, 128), (1, 2, 4), METHODS, FORMS)
    found = [Way(form, method, workers, mib) for mib, workers, method, form in every]
    return found + [Way("list", "spawn", 8, mib) for mib in (16, 128)]


@dataclass(frozen=True)
class Row:
    """One way. A ratio is None where the other side was not measured."""

    name: str
    form: str
    start_method: str
    workers: int
    dataset_bytes: int
    rounds: int
    first_batch_s: float
    low: float | None
    high: float | None
    build_s: float
    over_one_worker: float | None
    over_fork: float | None
    over_shared: float | None
    published: float | None
    source: str
    agrees: str


def main() -> None:
    """Round by round, then the table."""
    given = options(__doc__, "all sizes, workers and start methods", ROUNDS)
    rounds = given.rounds or ROUNDS
    chosen = [way for way in ways(given.full) if given.only in str(way)]
    found: dict[Way, list[dict[str, float]]] = {way: [] for way in chosen}
    for number in range(rounds):
        for way in chosen:
            found[way].append(fresh.measured("shipped.py", way.form, way.method, way.workers, way.mib))
            print(f"round {number + 1}  {way!s:44} {found[way][-1]['first_batch_s']:7.2f} s", flush=True)
    rows = list(rows_of(found))
    for row in rows:
        print(line(row))
    publish("shipping.csv", rows, key="name" if given.only else None)
    picture()


def rows_of(found: dict[Way, list[dict[str, float]]]) -> Iterator[Row]:
    """A row for each way."""
    times = {way: [each["first_batch_s"] for each in runs] for way, runs in found.items()}
    for way, seconds in times.items():
        first = Median.of(seconds)
        one_worker = over(times, way, replace(way, workers=1))
        yield Row(
            str(way), way.form, way.method, way.workers, way.mib << 20, len(seconds),
            first.value, first.low, first.high, statistics.median(each["build_s"] for each in found[way]),
            one_worker, over(times, way, replace(way, method="fork")), over(times, way, replace(way, form="shared")),
            way.published.ratio, way.published.source, agreement(one_worker, way.published),
        )  # fmt: skip


def over(times: Mapping[Way, Sequence[float]], way: Way, other: Way) -> float | None:
    """The median of one over the other's, round by round; None where the other was not measured."""
    if other not in times:
        return None
    return statistics.median(a / b for a, b in zip(times[way], times[other], strict=True))


def line(row: Row) -> str:
    """A row for the screen."""
    ratios = {"one worker": row.over_one_worker, "fork": row.over_fork, "shared": row.over_shared}
    text = "  ".join(f"{value:6.1f} x {name}" for name, value in ratios.items() if value is not None)
    said = "" if row.published is None else f"  published {row.published:.1f} x one worker: {row.agrees}"
    return f"{row.name:44} {row.first_batch_s:7.2f} s  {text}{said}"


def picture() -> None:
    """A panel for each start method: seconds by workers, a line for each form."""
    import figure  # matplotlib, which no worker has to load

    frame = figure.table("shipping.csv")
    size = frame["dataset_bytes"].max()
    frame = frame[(frame["dataset_bytes"] == size) & (frame["workers"] <= 4)].sort_values("workers")
    methods = [method for method in METHODS if method in set(frame["start_method"])]
    drawn, axes = figure.panels(1, len(methods))
    for ax, method in zip(axes, methods, strict=True):
        for colour, form in zip(figure.COLOURS, FORMS, strict=False):
            of_form = frame[(frame["start_method"] == method) & (frame["form"] == form)]
            ax.plot(of_form["workers"], of_form["first_batch_s"], "o-", label=form, color=colour)
            ax.fill_between(of_form["workers"], of_form["low"], of_form["high"], color=colour, alpha=0.2)
        ax.set(title=method, xlabel="workers", yscale="log", ylim=(0.01, 100), xticks=[1, 2, 4])
        ax.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    axes[0].set_ylabel(f"seconds to the first batch, {size >> 20} MiB")
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    figure.save(drawn, "shipping.svg")


if __name__ == "__main__":
    main()

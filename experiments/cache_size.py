"""What does a cache of part of the dataset save, by what it keeps and by who shares it?

Hypothesis, for samples in a new order each epoch: a cache that never evicts hits as often as it is large, one that
evicts what was used longest ago (LRU) much less often: c + (1 - c) ln(1 - c) of the time at a part c. Of S ranks that
each cache random samples of their own, each hits c of the time; with the same memory in one cache of the node all of
them hit min(1, S c) of the time, and wait so much less.

How to read the answer. ``simulated`` rows: 10^5 samples, six epochs, the first of which fills the cache and is not
counted; ``misses_over_static`` is LRU's misses over those of the cache that never evicts. ``measured`` rows: four
processes, a miss is 2 ms asleep and a sample costs 0.2 ms of computing; medians of rounds. ``expected_hit_ratio`` is
arithmetic, ``published`` what the source claims of the hit rate (of LRU it claims only that it misses more often),
``agrees`` compares with that, and ``as_expected`` says whether hits are within 0.01 (0.03 where measured, with few
samples) of arithmetic. ``low`` and ``high`` bound the median rate at 95 %, by bootstrap; rates of fewer than five
rounds have none. Linux keeps two lists, so that its page cache is better than LRU and worse than keeping. Takes about
a minute.

    python experiments/cache_size.py [--full] [--rounds N] [--only TEXT]                        (--full: nine rounds)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import caches
from commandline import options
from field import NOTHING, Published
from publishing import publish
from shardlab.intervals import Median

SAMPLES, EPOCHS = 100_000, 6
CACHE_RATIOS = (0.10, 0.25, 0.35, 0.50, 0.65, 0.80, 0.95)
NODE_SAMPLES, RANKS, NODE_RATIOS = 2000, 4, (0.10, 0.20, 0.25, 0.50)
ROUNDS, MORE_ROUNDS = 5, 9
COORDL = "CoorDL, Mohan et al., PVLDB 2021, https://github.com/msr-fiddle/CoorDL"


@dataclass(frozen=True)
class Row:
    """One cache. ``cache_ratio``: its part of the dataset (of each rank's, where each has one)."""

    name: str
    kind: str
    policy: str
    cache_ratio: float
    ranks: int
    rounds: int
    hit_ratio: float
    expected_hit_ratio: float
    as_expected: bool
    misses_over_static: float | None
    published: float | None
    source: str
    agrees: str
    samples_per_s: float | None
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    stall_ratio: float | None


def main() -> None:
    """Simulate, measure, print, write."""
    given = options(__doc__, "nine rounds", ROUNDS)
    rounds = given.rounds or (MORE_ROUNDS if given.full else ROUNDS)
    rows = [row for row in (*simulated(), *measured(rounds)) if given.only in row.name]
    for row in rows:
        print(line(row))
    if not given.only:
        publish("cache_size.csv", rows)
        picture()


def simulated() -> Iterator[Row]:
    """Both policies at all sizes."""
    orders = [order.tolist() for order in caches.shuffled(SAMPLES, EPOCHS)]
    for ratio in CACHE_RATIOS:
        capacity = round(ratio * SAMPLES)
        lru, static = caches.lru_hit_ratio(orders, capacity), caches.static_hit_ratio(orders, capacity)
        more = (1 - lru) / (1 - static)
        yield simulation("LRU", ratio, lru, caches.lru_law(ratio), more, Published(COORDL, above_one=True))
        yield simulation("static", ratio, static, ratio, None, Published(COORDL, ratio))


def simulation(
    policy: str, ratio: float, hits: float, expected: float, more: float | None, said: Published
) -> Row:
    """A simulated row. What is published of LRU is about its misses, of the other about its hits."""
    agrees = same(hits, said.ratio) if more is None else "direction" if more > 1 else "neither"
    return Row(
        f"simulated, {policy}, {ratio:.0%}", "simulated", policy, ratio, 1, 1, hits, expected,
        abs(hits - expected) <= 0.01, more, said.ratio, said.source, agrees, None, None, None, None,
    )  # fmt: skip


def same(hits: float, published: float | None) -> str:
    """Hit rates are shares: within 0.01 they are the same."""
    return "direction and magnitude" if published is not None and abs(hits - published) <= 0.01 else "neither"


def measured(rounds: int) -> Iterator[Row]:
    """A cache for each rank against one of the node, in turn."""
    for ratio in NODE_RATIOS:
        capacity = round(ratio * NODE_SAMPLES)
        kept = {
            "each rank its own": list(caches.own_shards(NODE_SAMPLES, RANKS, capacity)),
            "one of the node": caches.one_shard(NODE_SAMPLES, RANKS, capacity),
        }
        seen: dict[str, list[list[caches.Seen]]] = {policy: [] for policy in kept}
        for _ in range(rounds):
            for policy, cached in kept.items():
                seen[policy].append(caches.node(NODE_SAMPLES, RANKS, cached))
        for policy, runs in seen.items():
            expected = ratio if policy == "each rank its own" else min(1.0, RANKS * ratio)
            yield measurement(policy, ratio, expected, runs)


def measurement(policy: str, ratio: float, expected: float, runs: list[list[caches.Seen]]) -> Row:
    """A measured row, over all ranks and rounds."""
    rate = Median.of([NODE_SAMPLES / max(rank.wall_s for rank in run) for run in runs])
    ranks = [rank for run in runs for rank in run]
    hits = sum(rank.hits for rank in ranks) / sum(rank.samples for rank in ranks)
    stall = sum(rank.waited_s for rank in ranks) / sum(rank.wall_s for rank in ranks)
    return Row(
        f"measured, {policy}, {ratio:.0%}", "measured", policy, ratio, RANKS, len(runs), hits, expected,
        abs(hits - expected) <= 0.03, None, NOTHING.ratio, NOTHING.source, "",
        rate.value, rate.low, rate.high, stall,
    )  # fmt: skip


def line(row: Row) -> str:
    """A row for the screen."""
    more = "" if row.misses_over_static is None else f"  {row.misses_over_static:.2f} x the misses of static"
    rate = "" if row.samples_per_s is None else f"  {row.samples_per_s:6,.0f} samples/s, stall {row.stall_ratio:.0%}"
    hits = f"hits {row.hit_ratio:6.1%}, expected {row.expected_hit_ratio:6.1%}"
    return f"{row.name:40} {hits}  {row.agrees}{more}{rate}"


def picture() -> None:
    """Hit rates by size: simulated policies, and ranks with and without a cache in common."""
    import figure

    frame = figure.table("cache_size.csv").sort_values("cache_ratio")
    drawn, axes = figure.panels(1, 2)
    for ax, kind in zip(axes, ("simulated", "measured"), strict=True):
        of_kind = frame[frame["kind"] == kind]
        for colour, (policy, rows) in zip(figure.COLOURS, of_kind.groupby("policy"), strict=False):
            percent = rows["cache_ratio"] * 100
            ax.plot(percent, rows["expected_hit_ratio"] * 100, "-", color=colour)
            ax.plot(percent, rows["hit_ratio"] * 100, "o", color=colour, label=policy)
        ax.set(title=kind, xlabel="cache, % of the dataset", ylim=(-3, 103))
        ax.legend()
    axes[1].set_xlabel("cache, % of the dataset for each of 4 ranks")
    axes[0].set_ylabel("hits, % (lines: arithmetic)")
    figure.save(drawn, "cache_size.svg")


if __name__ == "__main__":
    main()

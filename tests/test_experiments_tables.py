"""What the experiments compute from what they measure: hand-worked values, nothing is timed."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "experiments"))

import pandas as pd
import torch

import bare_loop
import beside_published
import caches
import deliveries_of
import figure
import padding
import publishing
import sampling_errors
import stalls
from field import Published, agreement
from shardlab.intervals import Median


@pytest.mark.parametrize(
    ("measured", "published", "expected"),
    [
        (4.1, Published("s", 5.2), "direction and magnitude"),
        (19.0, Published("s", 5.2), "direction"),
        (0.5, Published("s", 5.2), "neither"),
        (1.1, Published("s", 5.2), "neither"),  # equal is not five times as fast
        (0.9, Published("s", 1.08), "direction and magnitude"),  # both say: the same
        (0.2, Published("s", 0.5), "direction"),
        (12.0, Published("s", above_one=True), "direction"),
        (0.4, Published("s", above_one=True), "neither"),
        (12.0, Published("s"), ""),
        (None, Published("s", 5.2), ""),
    ],
)
def test_agreement_is_of_side_and_size(measured: float | None, published: Published, expected: str) -> None:
    assert agreement(measured, published) == expected


@pytest.mark.parametrize(
    ("sampler", "samples", "ranks", "batch", "indices", "steps"),
    [
        ("DistributedSampler", 3, 4, 2, [0, 1, 2, 0], (1, 1, 1, 1)),
        ("DistributedSampler", 5, 2, 2, [0, 2, 4, 1, 3, 0], (2, 2)),
        ("accelerate, even_batches", 5, 2, 2, [0, 1, 4, 0, 2, 3, 1, 2], (2, 2)),
        ("accelerate, even_batches", 3, 4, 2, [0, 1, 2, 0, 1, 2, 0, 1], (1, 1, 1, 1)),
        ("accelerate, not even", 5, 2, 2, [0, 1, 4, 2, 3], (2, 1)),
        ("keyed, pad", 5, 2, 2, [0, 1, 4, 0, 2, 3, 1, 2], (2, 2)),
        ("keyed, drop", 5, 2, 2, [0, 1, 2, 3], (1, 1)),
        ("keyed, keep", 5, 2, 2, [0, 1, 4, 2, 3], (2, 1)),
    ],
)
def test_who_gets_what_of_a_last_round(
    sampler: str, samples: int, ranks: int, batch: int, indices: list[int], steps: tuple[int, ...]
) -> None:
    found = deliveries_of.delivered(deliveries_of.WAYS[sampler], samples, ranks, batch)
    assert (list(found.indices), found.steps) == (indices, steps)


def test_three_samples_on_four_ranks_of_two() -> None:
    found = deliveries_of.delivered(deliveries_of.WAYS["accelerate, even_batches"], 3, 4, 2)
    assert (found.distinct, found.duplicates, found.missing, found.most) == (3, 5, 0, 3)
    nothing = deliveries_of.delivered(deliveries_of.WAYS["keyed, drop"], 3, 4, 2)
    assert (nothing.distinct, nothing.duplicates, nothing.missing, nothing.most) == (0, 0, 3, 0)


def test_an_accuracy_counts_a_repeat_again() -> None:
    right = np.array([True, False, True, False])
    assert padding.accuracy_of([0, 1, 2, 3], right) == 0.5
    assert padding.accuracy_of([0, 1, 2, 3, 0, 2], right) == pytest.approx(4 / 6)
    assert padding.accuracy_of([], right) is None


def test_known_mistakes_are_what_they_are_said_to_be() -> None:
    found = {error.name: error for error in sampling_errors.errors()}
    assert all(error.agrees == "yes" for error in found.values())
    assert found["divided twice among 4 ranks: arrived"].measured == 0.25
    assert found["each index drawn anew, of 10000: missing"].measured == pytest.approx(1 / math.e, abs=0.01)
    assert found["set_epoch forgotten: orders in 5 epochs"].measured == 1


def test_least_recently_used_by_hand() -> None:
    # 0 1 fill; 2 puts 0 out; 2 is a hit; 0 puts 1 out; 1 puts 2 out
    assert caches.lru_hit_ratio([[0, 1, 2], [2, 0, 1]], capacity=2) == pytest.approx(1 / 3)
    assert caches.static_hit_ratio([[0, 1, 2], [2, 0, 1]], capacity=2) == pytest.approx(2 / 3)


def test_a_cache_of_half_of_the_samples() -> None:
    """1/2 - ln(2)/2 = 0.1534, and a cache that holds all of them never misses."""
    orders = [order.tolist() for order in caches.shuffled(20_000, 3)]
    assert caches.lru_law(0.5) == pytest.approx(0.1534, abs=1e-4)
    assert caches.lru_hit_ratio(orders, 10_000) == pytest.approx(0.1534, abs=0.01)
    assert caches.lru_law(1.0) == caches.lru_hit_ratio(orders, 20_000) == 1.0


def test_one_cache_of_the_node_has_the_room_of_all() -> None:
    own = list(caches.own_shards(100, 4, 10))
    assert [len(set(kept.tolist())) for kept in own] == [10] * 4
    assert len({index for kept in own for index in kept.tolist()}) > 10  # not all the same
    shared = caches.one_shard(100, 4, 10)
    assert [len(set(kept.tolist())) for kept in shared] == [40] * 4
    assert len(caches.one_shard(100, 4, 50)[0]) == 100


def test_a_stall_follows_from_both_rates() -> None:
    assert stalls.predicted_stall(250.0, 1000.0, overlapped=True) == 0.75
    assert stalls.predicted_stall(2000.0, 1000.0, overlapped=True) == 0.0
    assert stalls.predicted_stall(1000.0, 3000.0, overlapped=False) == pytest.approx(0.75)  # 1 ms and 1/3 ms


def test_three_runs_tell_preparing_from_fetching() -> None:
    found = {
        stalls.Case("synth", 0, 5): [stalls.Run(1000.0, 0.0, 0.0, 0)],
        stalls.Case("cold", 1, 0): [stalls.Run(250.0, None, 0.1, 96, 0.0, 1.0)],
        stalls.Case("warm", 1, 5): [stalls.Run(800.0, 0.2, 0.1, 0, 1.0, 1.0)],
        stalls.Case("cold", 1, 5): [stalls.Run(200.0, 0.7, 0.1, 96, 0.0, 1.0)],
    }
    rows = {row.name: row for row in stalls.rows_of(found, 1e-4, 100)}
    cold, warm = rows["cold, 1 workers, 5 ms"], rows["warm, 1 workers, 5 ms"]
    assert warm.prep_stall_ratio == pytest.approx(0.2)
    assert cold.fetch_stall_ratio == pytest.approx(0.75)
    assert (cold.predicted_stall_ratio, cold.agrees) == (0.75, "yes")
    assert (warm.predicted_stall_ratio, warm.agrees) == (None, "")  # the file alone was not measured warm
    assert (cold.cache_state, cold.read_bytes) == ("cold_verified", 96)
    assert (cold.file_bytes, rows["synth, 5 ms"].file_bytes) == (100, None)


def test_a_cold_cache_is_verified_or_said_not_to_be() -> None:
    assert stalls.cache_state("cold", [0.0, 0.5]) == "cold_requested"
    assert stalls.cache_state("cold", [0.0, None]) == "unknown"
    assert stalls.cache_state("warm", [1.0, 0.9]) == "warm_requested"
    assert stalls.cache_state("synth", [None]) == ""


def test_bytes_are_added_by_eight_and_the_rest_by_one() -> None:
    batch = torch.zeros(3, 7, dtype=torch.uint8)
    batch[0, 0], batch[1, 1], batch[2, 6] = 2, 1, 5  # the first and the ninth byte are the lowest of their words
    assert bare_loop.every_byte(batch) == 2 + 1 + 5
    batch[0, 1] = 1  # a word's second byte
    assert bare_loop.every_byte(batch) == 256 + 8


def test_a_rank_that_dies_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_rank", lambda *_: sys.exit(1))
    with pytest.raises(RuntimeError, match="of 2 ranks some did not end"):
        caches.node(8, 2, [np.arange(2)] * 2, timeout_s=0.2)


def test_a_row_of_others_is_compared_or_said_to_be_of_something_else() -> None:
    frame = pd.DataFrame({
        "form": ["bytes", "tensor"], "batch_bytes": [32 << 20] * 2, "ring_over": [5.0, 2.0], "published": [5.2, 1.1],
        "over_bytes": [1.0, 2.5], "published_over_bytes": [None, 4.0],
    })  # fmt: skip
    same, *others = beside_published.of_transport(frame)
    assert (same.name, same.agrees, same.nearest_published) == (
        "transport: tensor / bytes, 32 MiB", "direction and magnitude", None,
    )  # fmt: skip
    assert [(row.measured, row.published, row.agrees, row.nearest_published) for row in others] == [
        (5.0, None, "", 5.2), (2.0, None, "", 1.1),
    ]  # fmt: skip
    assert all(row.why for row in others)


def test_a_picture_is_the_same_bytes_again(tmp_path: Path, monkeypatch: Any) -> None:
    for module in (figure, publishing):
        monkeypatch.setattr(module, "OUT", tmp_path)
    frame = pd.DataFrame({
        "setting": ["x", "x", "y"], "way": ["a", "b", "a"], "ratio": [2.0, 3.0, 4.0],
        "low": [1.0, 2.5, 3.0], "high": [2.5, 4.0, 5.0],
    })  # fmt: skip
    for name in ("one.svg", "two.svg"):
        drawn, (ax,) = figure.panels(1)
        figure.points(ax, frame, "setting", "ratio", "way")
        figure.ratio_axis(ax, "ratio")
        figure.save(drawn, name)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["x", "y"]
    points = [container.lines[0].get_xdata().tolist() for container in ax.containers]  # type: ignore[attr-defined]
    assert points == [[2.0, 4.0], [3.0]]
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_medians_of_rates_are_what_is_divided() -> None:
    rates = {stalls.Case("warm", 1, 5): Median.of([400.0]), stalls.Case("cold", 1, 5): Median.of([100.0])}
    assert stalls.lost(rates, stalls.Case("warm", 1, 5), stalls.Case("cold", 1, 5)) == 0.75
    assert stalls.lost(rates, stalls.Case("synth", 0, 5), stalls.Case("cold", 1, 5)) is None

"""What becomes of published files, and that the settings of experiments suffice for what they publish."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "experiments"))

import cache_size
import cold_and_warm
import dispatch_or_shard
import publishing
import shipping
import throughput
import transport
from shardlab.intervals import FEWEST


@dataclass(frozen=True)
class Measured:
    name: str
    ratio: float | None


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(publishing, "OUT", tmp_path)
    monkeypatch.setattr(publishing, "_draw", lambda _name: None)

    def names_and_ratios() -> list[str]:
        with (tmp_path / "x.csv").open(newline="") as file:
            return [f"{row['name']} {row['ratio']}" for row in csv.DictReader(file)]

    return names_and_ratios


def test_what_is_not_measured_again_stays_and_the_file_is_sorted(published: Callable[[], list[str]]) -> None:
    def order(row: publishing.Line) -> float:
        return float(row["ratio"])

    publishing.publish("x.csv", [Measured("a", 2.0), Measured("b", 3.0)], key="name")
    publishing.publish("x.csv", [Measured("b", 1.5), Measured("c", 10.0)], key="name", order=order)
    assert published() == ["b 1.5", "a 2.0", "c 10.0"]
    publishing.publish("x.csv", [Measured("c", None)])
    assert published() == ["c "]


def test_no_rows_leave_the_file_as_it_is(published: Callable[[], list[str]], tmp_path: Path) -> None:
    publishing.publish("x.csv", [Measured("a", 2.0)])
    publishing.publish("x.csv", [])
    publishing.publish("x.csv", [], key="name")
    assert published() == ["a 2.0"]
    publishing.publish("new.csv", [])
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_rows_with_other_columns_go(published: Callable[[], list[str]]) -> None:
    earlier = make_dataclass("Earlier", [("name", str), ("ratio", float), ("more", int)])
    publishing.publish("x.csv", [earlier("a", 2.0, 1)], key="name")
    publishing.publish("x.csv", [Measured("b", 3.0)], key="name")
    assert published() == ["b 3.0"]


def test_a_file_that_cannot_be_written_anew_is_the_old_one(
    published: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing.publish("x.csv", [Measured("a", 2.0)])
    monkeypatch.setattr(csv.DictWriter, "writerows", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        publishing.publish("x.csv", [Measured("b", 3.0)])
    assert published() == ["a 2.0"]
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_a_default_run_has_rounds_enough_for_an_interval() -> None:
    asked = (cache_size, cold_and_warm, dispatch_or_shard, shipping, throughput, transport)
    assert all(experiment.ROUNDS >= FEWEST for experiment in asked)


def test_an_epoch_has_some_steps() -> None:
    """Samples of the whole dataset over those of a global batch, and no more than are asked for; 4 at the least."""
    mib = 1 << 20
    for each in throughput.settings(full=True):
        samples = 100_000 if each.cost_us else 256 * mib // throughput.SIZES[each.size][0]
        steps = min(samples // (4 * each.batch_size), each.flags("keyed", "")["max_steps"])
        assert steps >= 4
    for setting in dispatch_or_shard.ALL:
        samples = 100_000 if setting.cost_us else 384 * mib // (setting.batch_bytes // 32)
        assert samples // (32 * setting.world_size) >= setting.steps >= 4

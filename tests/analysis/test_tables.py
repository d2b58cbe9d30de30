"""Runs become one row per configuration, and ratios against one of them: counted and worked out by hand."""

from __future__ import annotations

import io
from typing import Any

import pandas as pd
import pytest

from analysis.frames import run, runs
from shardlab import analysis
from shardlab.analysis.aggregate import differing
from shardlab.errors import UsageError


def test_medians_and_counts_of_each_configuration() -> None:
    frame = runs(
        run("a", "keyed", 30.0, delivered=10),
        run("b", "ring", 5.0),
        run("c", "keyed", 10.0, delivered=12, duplicates=2, status="audit"),
        run("d", "keyed", 20.0, missing=1),
        run("e", "keyed", None, status="failed", delivered=None),
        run("f", "keyed", 99.0, status="interrupted"),
    )
    table = analysis.by_configuration(frame)
    assert table["sampler"].tolist() == ["keyed", "ring"]
    assert table["samples_per_s"].tolist() == [25.0, 5.0]  # a run that delivered wrongly has no say in it
    assert table[["n", "failed", "audit"]].to_numpy().tolist() == [[3, 1, 1], [1, 0, 0]]
    assert table[["delivered", "duplicates", "missing"]].to_numpy().tolist() == [[12, 2, 1], [10, 0, 0]]


def test_the_interval_holds_the_median_and_lies_within_the_values() -> None:
    frame = runs(*(run(str(speed), "keyed", speed) for speed in (10.0, 11.0, 12.0, 13.0, 50.0)))
    row = analysis.by_configuration(frame).iloc[0]
    assert (
        10.0 <= row["samples_per_s_low"] <= row["samples_per_s"] == 12.0 <= row["samples_per_s_high"] <= 50.0
    )


def test_what_was_only_interrupted_is_no_configuration() -> None:
    frame = runs(run("a", "keyed", 7.0), run("b", "ring", None, status="interrupted", workers=2))
    table = analysis.by_configuration(frame)
    assert table[["sampler", "n"]].to_numpy().tolist() == [["keyed", 1]]
    assert differing(frame) == ["sampler", "store", "workers"]
    assert analysis.against(frame, "keyed + private").empty


@pytest.mark.parametrize(("number", "bounded"), [(4, False), (5, True)])
def test_an_interval_takes_five_runs(number: int, bounded: bool) -> None:
    frame = runs(
        *(run(f"a{n}", "keyed", 10.0 + n, comparison="c", repeat=n) for n in range(number)),
        *(run(f"b{n}", "ring", 30.0 + n, comparison="c", repeat=n) for n in range(number)),
    )
    assert analysis.by_configuration(frame)["samples_per_s_low"].notna().tolist() == [bounded] * 2
    for paired in (True, False):
        ratios = analysis.against(frame if paired else frame.assign(comparison=pd.NA), "keyed + private")
        assert ratios["paired"].tolist() == [paired]
        assert ratios[["low", "high"]].notna().to_numpy().tolist() == [[bounded] * 2]
        assert ratios["low"].dtype == "float64"


def test_one_run_has_no_interval_and_no_run_no_figure() -> None:
    table = analysis.by_configuration(runs(run("a", "keyed", 7.0), run("b", "ring", None, status="failed")))
    assert table["samples_per_s"].tolist()[0] == 7.0
    assert table["samples_per_s_low"].isna().all()
    assert table.loc[1, ["n", "failed"]].tolist() == [0, 1]
    assert table.loc[1, ["samples_per_s", "copies", "delivered", "stall_ratio"]].isna().all()


def copies(value: float, low: float, high: float) -> dict[str, Any]:
    return run(f"{value}{low}", "keyed", 1.0, copies=value, copies_low=low, copies_high=high)


def test_copies_keep_the_bounds_that_the_runs_gave() -> None:
    frame = runs(copies(2.0, 1.8, 2.2), copies(2.0, 1.9, 2.1), copies(2.0, 1.7, 2.3))
    row = analysis.by_configuration(frame).iloc[0]
    assert row[["copies", "copies_low", "copies_high"]].tolist() == [2.0, 1.8, 2.2]


def test_one_run_that_reads_low_does_not_make_four_copies_one() -> None:
    frame = runs(*(copies(value, value - 0.1, value + 0.1) for value in (1.0, 1.0, 4.0, 4.0, 4.0)))
    row = analysis.by_configuration(frame).iloc[0]
    assert row[["copies", "copies_low", "copies_high"]].tolist() == [4.0, 3.9, 4.1]


def test_configurations_differ_in_flags_and_nothing_else() -> None:
    frame = runs(run("a", "keyed", 1.0, repeats=3, kernel="5"), run("b", "keyed", 2.0, repeats=1, workers=2))
    assert differing(frame) == ["sampler", "store", "workers"]
    assert len(analysis.by_configuration(frame, by=["sampler"])) == 1
    table = analysis.by_configuration(frame)
    assert table["workers"].tolist() == [0, 2]
    assert table["workers"].dtype == "Int64"


def test_a_frame_as_pandas_reads_it_will_do() -> None:
    text = (
        "run_id,sampler,store,status,samples_per_s,max_steps\na,keyed,shared,ok,4,\nb,keyed,shared,ok,8,5\n"
    )
    table = analysis.by_configuration(pd.read_csv(io.StringIO(text)))
    assert table["samples_per_s"].tolist() == [4.0, 8.0]
    assert table["copies"].isna().all()


def test_no_runs_are_no_configurations() -> None:
    assert analysis.by_configuration(runs(run("a", "keyed", 1.0)).head(0)).empty


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"workers": 2}, "keyed + shared, 2 workers"),
        ({"workers": 1, "nproc": 1}, "keyed + shared, 1 rank, 1 worker"),
        ({"workers": 0, "tail": "pad", "max_steps": pd.NA}, "keyed + shared"),
        (
            {"shuffle": False, "tail": "drop", "framework": "ddp"},
            "keyed + shared, tail drop, no shuffle, ddp",
        ),
        ({"dataset": "folder/mine.py:load", "batch_size": 64}, "keyed + shared, on mine.py:load, batch 64"),
    ],
)
def test_a_label_says_what_is_not_usual(row: dict[str, object], said: str) -> None:
    assert analysis.label({"sampler": "keyed", "store": "shared", **row}) == said


def test_rows_of_other_files_are_labelled_by_their_run() -> None:
    nodes = pd.DataFrame({"run_id": ["b", "a", "gone"], "copies": [1, 2, 3]})
    labelled = analysis.labelled(nodes, runs(run("a", "keyed", 1.0), run("b", "ring", 1.0)))
    assert labelled["label"].tolist() == ["ring + private", "keyed + private", "gone"]
    assert labelled["copies"].tolist() == [1, 2, 3]


def test_machines_are_told_apart() -> None:
    same = runs(run("a", "keyed", 1.0), run("b", "ring", 1.0))
    assert analysis.machines(same)["runs"].tolist() == [2]
    mixed = runs(
        run("a", "keyed", 1.0), run("b", "ring", 1.0, torch="2.15"), run("c", "ring", 1.0, torch="2.15")
    )
    assert analysis.machines(mixed)[["torch", "runs"]].to_numpy().tolist() == [["2.14", 1], ["2.15", 2]]


def pairs_that_drift() -> pd.DataFrame:
    """Five pairs, twice as fast in each, while the machine slows down to a third."""
    rows = []
    for repeat, speed in enumerate((60.0, 40.0, 30.0, 24.0, 20.0)):
        rows += [
            run(f"a{repeat}", "distributed", speed, comparison="c", repeat=repeat),
            run(f"b{repeat}", "keyed", 2 * speed, comparison="c", repeat=repeat),
        ]
    return runs(*rows)


def test_runs_in_turn_are_compared_pair_by_pair() -> None:
    row = analysis.against(pairs_that_drift(), {"sampler": "distributed"}).iloc[0]
    assert row[["sampler", "label", "ratio", "low", "high", "pairs", "paired"]].tolist() == [
        "keyed", "keyed + private", 2.0, 2.0, 2.0, 5, True,
    ]  # fmt: skip


def test_runs_of_no_comparison_are_compared_by_their_medians() -> None:
    row = analysis.against(pairs_that_drift().assign(comparison=pd.NA), "distributed + private").iloc[0]
    assert not row["paired"]
    assert row["ratio"] == 2.0
    assert 2 * 20 / 60 <= row["low"] < 2.0 < row["high"] <= 2 * 60 / 20
    assert row["pairs"] == 5


def test_runs_of_other_comparisons_make_no_pair() -> None:
    frame = runs(run("a", "distributed", 4.0, comparison="c"), run("b", "keyed", 12.0, comparison="d"))
    row = analysis.against(frame, {"sampler": "distributed"}).iloc[0]
    assert row[["ratio", "pairs", "paired"]].tolist() == [3.0, 1, False]
    assert row[["low", "high"]].isna().all()


@pytest.mark.parametrize("status", ["failed", "audit", "interrupted"])
def test_a_run_that_did_not_go_well_takes_its_pair_with_it(status: str) -> None:
    frame = pairs_that_drift()
    frame.loc[frame["run_id"] == "b1", ["samples_per_s", "status"]] = [900.0, status]
    row = analysis.against(frame, {"sampler": "distributed"}).iloc[0]
    assert row[["ratio", "pairs", "paired"]].tolist() == [2.0, 4, True]


def test_of_nothing_the_ratio_is_zero_and_has_no_bounds() -> None:
    frame = runs(run("a", "distributed", 4.0), run("b", "keyed", 0.0), run("c", "keyed", 0.0))
    row = analysis.against(frame, {"sampler": "distributed"}).iloc[0]
    assert row[["ratio", "pairs", "paired"]].tolist() == [0.0, 1, False]
    assert row[["low", "high"]].isna().all()


def test_a_start_method_that_follows_from_the_store_is_in_no_name() -> None:
    frame = runs(
        run("a", "distributed", 4.0, start_method="spawn"),
        run("b", "distributed", 8.0, store="inherited", start_method="fork"),
    )
    assert differing(frame) == ["sampler", "store"]
    assert analysis.against(frame, "distributed + private")["label"].tolist() == ["distributed + inherited"]
    frame.loc[2] = frame.loc[0].replace("spawn", "fork")
    assert differing(frame) == ["sampler", "store", "start_method"]
    assert analysis.against(frame, "distributed + private, start method fork")["ratio"].tolist() == [1.0, 2.0]


def test_where_nothing_was_measured_there_is_no_ratio() -> None:
    frame = runs(run("a", "distributed", 4.0), run("b", "keyed", None, status="failed"))
    row = analysis.against(frame, {"sampler": "distributed"}).iloc[0]
    assert row["pairs"] == 0
    assert row[["ratio", "low", "high"]].isna().all()


def test_another_figure_can_be_compared() -> None:
    frame = runs(run("a", "distributed", 4.0, copies=4.0), run("b", "keyed", 4.0, copies=1.0))
    assert analysis.against(frame, {"sampler": "distributed"}, "copies")["ratio"].tolist() == [0.25]


@pytest.mark.parametrize(
    "baseline", [{"sampler": "ring"}, {"store": "private"}, "ring + private", {"seat": 1}]
)
def test_a_baseline_that_is_not_one_configuration_is_refused(baseline: object) -> None:
    with pytest.raises(UsageError, match=r"choose from 'distributed \+ private', 'keyed \+ private'"):
        analysis.against(pairs_that_drift(), baseline)  # type: ignore[arg-type]

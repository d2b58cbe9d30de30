"""The sentences of a report are read off its rows: worked by hand here."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
from results_by_hand import copies, folder, run

from shardlab import choosing, csvlog
from shardlab.analysis import load
from shardlab.comparing.standing import standings
from shardlab.errors import UsageError
from shardlab.records import RunRecord
from shardlab.reporting import sources
from shardlab.reporting.configurations import configurations
from shardlab.reporting.parts import Table
from shardlab.reporting.sentences import verdict
from shardlab.words import reasons, times

KEYED = {"sampler": "keyed", "store": "shared"}
RING = {"sampler": "ring", "store": "shared"}


def said(path: Path, *runs: RunRecord) -> list[str]:
    results = load(folder(path, *runs))
    return verdict(configurations(results.runs, results.nodes))


def test_one_run_is_told_as_the_screen_tells_it(tmp_path: Path) -> None:
    first, *rest = said(tmp_path, run("a", **copies(2.0, 1000.0)))
    assert first == (
        "This node holds 2.0 copies of the dataset (1.75 to 2.25), 64.0 MiB of it duplicate. "
        "Keep one copy with --store shared."
    )
    assert rest == ["The run delivered what it should, no sample twice.", "1,000 different samples/s on 2 ranks."]


@pytest.mark.parametrize(
    ("held", "within", "end"),
    [
        (1.02, 0.1, ": nothing to save."),
        (1.3, 0.5, ": not clear of one copy."),
        (1.0, 0.9, ": not clear of one copy."),
    ],
)
def test_one_copy_is_nothing_to_save(tmp_path: Path, held: float, within: float, end: str) -> None:
    assert said(tmp_path, run("a", KEYED, **copies(held, 1.0, within)))[0].endswith(end)


def test_the_best_has_the_fewest_copies_and_then_the_most_speed(tmp_path: Path) -> None:
    sentences = said(
        tmp_path,
        *(run(f"d{n}", **copies(2.0, 1000.0 + n)) for n in range(3)),
        *(run(f"k{n}", KEYED, **copies(1.0, 4000.0 + n)) for n in range(3)),
        *(run(f"r{n}", RING, **copies(1.1, 3000.0 + n)) for n in range(3)),
    )
    assert sentences[0] == (
        "Best on synthetic:64MiB, 2 ranks: keyed + shared, with 1.0 copies on a node and 4,001 different samples/s. "
        "It saves 64.0 MiB on a node against distributed + private. "
        "It is 1.33 times as fast as ring + shared, as far as 3 runs of each can say (an interval takes 5)."
    )
    assert "a node holds 2.0 copies of the dataset (1.75 to 2.25) with distributed + private: 64." in sentences[1]
    assert "with keyed + shared; 1.1 (0.85 to 1.35) with ring + shared: nothing to save" in sentences[2]
    assert sentences[3] == "Every run delivered what it should, no sample twice."


def test_a_faster_one_with_more_copies_is_named_beside_the_best(tmp_path: Path) -> None:
    best = said(tmp_path, run("d", **copies(2.0, 3000.0)), run("k", KEYED, **copies(1.0, 1000.0)))[0]
    assert best.endswith(
        "distributed + private is 3.00 times as fast, as far as a single run of each can say (an interval takes 5), "
        "and holds 2.0 copies."
    )


def test_speeds_whose_intervals_meet_are_not_told_apart(tmp_path: Path) -> None:
    best = said(tmp_path, *in_turns(comparison=None))[0]
    assert re.search(r"It is 1\.03 times \(0\.\d+ to \d\.\d+\) as fast as .*, which is no clear difference\.", best)


def test_runs_made_in_turn_are_told_apart_pair_by_pair(tmp_path: Path) -> None:
    best = said(tmp_path, *in_turns(comparison="c"))[0]
    assert "It is 1.03 times (1.02 to 1.10) as fast as distributed + private." in best


def in_turns(comparison: str | None) -> list[RunRecord]:
    """Five pairs on a machine that becomes five times as fast, the second of each faster by 100 samples/s."""
    runs = []
    for repeat, speed in enumerate((1000.0, 2000.0, 3000.0, 4000.0, 5000.0)):
        pair = (
            run(f"d{repeat}", **copies(2.0, speed)),
            run(f"k{repeat}", KEYED, **copies(1.0, speed + 100)),
        )
        runs += [dataclasses.replace(each, comparison=comparison, repeat=repeat) for each in pair]
    return runs


def test_what_went_wrong_comes_first_and_is_never_the_best(tmp_path: Path) -> None:
    wrong = {**copies(1.0, 9000.0), "status": "audit", "distinct": 60, "duplicates": 40, "missing": 40}
    failed = {"status": "failed", "reason": "run: rank 1 failed: ValueError: a; b", "copies": None, "samples": None}
    sentences = said(
        tmp_path,
        run("d", **copies(2.0, 1000.0)),
        run("k", KEYED, **copies(1.0, 900.0)),
        run("r", RING, **wrong),
        run("x", {"dataset": "mnist"}, **failed),
    )
    assert sentences[0] == (
        "ring + shared: the ranks did not get what they should: 40 of 100 samples reached no rank and "
        "40 of 100 delivered came again (run r)."
    )
    assert sentences[1] == "distributed + private on mnist, 2 ranks: the run failed: rank 1 failed: ValueError: a; b."
    assert sentences[2].startswith("Best on synthetic:64MiB, 2 ranks: keyed + shared")
    assert sentences[-1] == "2 of 4 runs delivered what they should."


def test_other_data_other_ranks_and_other_machines_are_no_rivals(tmp_path: Path) -> None:
    results = load(
        folder(
            tmp_path,
            run("a", **copies(2.0, 1000.0)),
            run("b", KEYED, **copies(1.0, 2000.0), hostname="b"),
            run("c", {**KEYED, "dataset": "mnist"}, **copies(1.0, 3000.0)),
            run("d", KEYED, **{**copies(1.0, 4000.0), "world_size": 4}),
        )
    )
    sentences = verdict(configurations(results.runs, results.nodes), machines=2)
    assert sentences[0] == "These runs are of 2 machines, whose figures do not compare with each other."
    assert not any(sentence.startswith("Best") for sentence in sentences)


def test_unknown_copies_say_why(tmp_path: Path) -> None:
    unknown = run("a", samples_per_s=10.0, reason="copies: there was no control run; stall_ratio: nothing computes")
    assert said(tmp_path, unknown)[0] == "This node: copies of the dataset not known: there was no control run."


def test_a_reason_keeps_its_own_semicolons() -> None:
    told = {"run": "choose from a, b; cure: wait", "copies (n2)": "none", "copies may be off": "late"}
    assert reasons("run: choose from a, b; cure: wait; copies (n2): none; copies may be off: late") == told
    assert reasons(None) == {}


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        ((120.4, 99.96, 1234.5), "120 times (100 to 1,230)"),
        ((0.00456, 0.00123, 0.00999), "0.00456 times (0.00123 to 0.00999)"),
        ((9.996, None, None), "10.0 times"),
        ((2.0, math.nan, 3.0), "2.00 times"),
        ((math.nan, 1.0, 2.0), "-"),
        ((None, None, None), "-"),
    ],
)
def test_ratios_have_three_digits_and_no_exponent(ratio: tuple[float | None, ...], said: str) -> None:
    assert times(*ratio) == said


def test_runs_that_were_interrupted_are_said_once_and_are_no_failures(tmp_path: Path) -> None:
    stopped = {"status": "interrupted", "reason": "run: interrupted"}
    path = folder(
        tmp_path, *(run(f"a{n}", **copies(2.0, 1000.0)) for n in range(2)),
        run("i", copies=None, **stopped), run("j", KEYED, copies=None, **stopped),
    )  # fmt: skip
    made = sources.page(path, "t")
    assert made.verdict[0] == "2 runs were interrupted, and counted nowhere."
    assert made.verdict[1].startswith("This node holds 2.0 copies")
    assert made.verdict[2] == "Every run delivered what it should, no sample twice."
    assert made.made_from.startswith("From 2 runs")
    tables = [part for section in made.sections for part in section.parts if isinstance(part, Table)]
    rows = [row for table in tables for row in table.rows]
    assert not [row for row in rows if row[0] in ("i", "j") or "1 failed" in row or "run: interrupted" in row]
    assert [list(sources.chosen(load(path), path, None, last).runs["run_id"]) for last in (1, 3)] == [
        ["a1"], ["a0", "a1"],
    ]  # fmt: skip
    with pytest.raises(UsageError, match="needs a run that was not interrupted, but got 'i'"):
        sources.page(path, "t", ["i"])


def test_a_configuration_that_failed_once_is_never_the_best(tmp_path: Path) -> None:
    sentences = said(
        tmp_path,
        run("d", **copies(2.0, 1000.0)),
        run("r", RING, **copies(1.0, 500.0)),
        *(run(f"k{n}", KEYED, **copies(1.0, 9000.0), status=status) for n, status in enumerate(("ok", "failed"))),
    )
    best = next(text for text in sentences if text.startswith("Best"))
    assert best.startswith("Best on synthetic:64MiB, 2 ranks: ring + shared")


def test_the_speed_of_runs_that_delivered_wrongly_does_not_count(tmp_path: Path) -> None:
    wrong = run("a", **{**copies(2.0, 1000.0), "status": "audit", "missing": 1})
    assert not any("samples/s" in text for text in said(tmp_path, wrong))


def test_what_is_one_copy_saves_nothing_on_another_that_is(tmp_path: Path) -> None:
    both = run("k", KEYED, **copies(1.0, 900.0, 0.001)), run("r", RING, **copies(1.09, 800.0, 0.001))
    sentences = said(tmp_path, *both)
    assert "It saves" not in sentences[0]
    assert sentences[1].endswith("nothing to save.")


def test_report_and_compare_name_the_same_best_of_the_same_rows(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    names = {"distributed + private": {}, "keyed + shared": KEYED, "ring + shared": RING}
    found = set()
    for case in range(25):
        rows = [
            run(
                f"{name}{turn}", flags,
                **copies(round(float(held), 2), float(draw.uniform(1, 9)), float(draw.uniform(0, 0.5))),
                status=str(draw.choice(["ok", "audit", "failed", "interrupted"], p=[0.88, 0.04, 0.04, 0.04])),
            )
            for name, flags in names.items()
            for held in [draw.choice([1.0, 1.15, 2.0])]
            for turn in range(int(draw.integers(1, 7)))
        ]  # fmt: skip
        path = folder(tmp_path / str(case), *rows)
        results = load(path)
        group = configurations(results.runs, results.nodes)
        chosen = choosing.best_of(group)
        texts = [row for row in csvlog.read_rows(path / "runs.csv") if row["status"] != "interrupted"]
        by_name = {name: [row for row in texts if row["run_id"].startswith(name)] for name in names}
        there = standings({name: of for name, of in by_name.items() if of}, {})
        best = choosing.best_of(there)
        assert (None if chosen is None else group[chosen].label) == (None if best is None else there[best].name)
        found.add(chosen)
    assert len(found) > 2  # each of them was the best of some

"""Where configurations stand, which one is named and what gates say, on figures that a person can check."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from rows_by_hand import groups_of, held, run_row, turns

from shardlab.analysis.load import columns
from shardlab.comparing.choice import best_of, sentences
from shardlab.comparing.gates import Gate, Rules, gates
from shardlab.comparing.judging import answered, one_baseline
from shardlab.comparing.matrix import CompareConfig
from shardlab.comparing.screen import audit, ranking
from shardlab.comparing.standing import Standing, ratio, standings
from shardlab.errors import UsageError
from shardlab.explain import DICTIONARY, entries
from shardlab.show import console

FOUR = turns("distributed", "private", [100, 110, 90, 100, 100], **held(4.0, mib=768))
ONE = turns("keyed", "shared", [200, 330, 180, 200, 200], **held(1.0))
OTHER = turns("ring", "shared", [210, 320, 170, 190, 210], **held(1.02))


def stand(*groups: list[dict[str, str]]) -> list[Standing]:
    """Against the first."""
    rows = groups_of(*groups)
    return standings(rows, dict.fromkeys(rows, next(iter(rows))), "c")


def said(found: list[Standing], *groups: list[dict[str, str]]) -> str:
    return " ".join(sentences(found, best_of(found), groups_of(*groups)))


def judged(found: list[Standing], copies: float | None, least: float | None, named: bool = True) -> list[Gate]:
    return gates(found, Rules(copies, least, named))


def test_medians_ratios_of_the_same_turn_and_the_order_of_the_ranking():
    found = stand(FOUR, ONE)
    assert [each.name for each in found] == ["keyed + shared", "distributed + private"]
    best, base = found
    assert (best.samples_per_s, base.samples_per_s) == (200, 100)
    assert (best.ratio, best.ratio_low, best.ratio_high) == (2.0, 2.0, 3.0)  # 2, 3, 2, 2 and 2, turn by turn
    assert (base.is_baseline, base.ratio, base.ratio_low, base.ratio_high) == (True, 1, 1, 1)
    assert (best.runs, best.copies, best.is_one_copy, base.is_one_copy) == (5, 1.0, True, False)


def test_runs_of_no_turn_in_common_have_a_ratio_of_medians():
    apart = [row | {"comparison": "d"} for row in ONE]
    times = ratio(apart, FOUR)
    assert times is not None and (times.value, times.paired) == (2.0, False)


def test_a_run_that_was_not_well_lends_its_speed_to_nothing():
    wrong = [*ONE[:2], run_row("keyed", "shared", 10_000, repeat=2, status="audit", missing=3)]
    found = {each.name: each for each in stand(FOUR, wrong)}["keyed + shared"]
    assert (found.status, found.samples_per_s, found.missing) == ("audit", 265, 3)  # of 200 and 330
    assert audit(found) == "WRONG"


def test_what_ranks_did_not_get_is_told_and_such_a_configuration_is_never_best():
    wrong = turns("keyed", "shared", [900] * 5, status="audit", reason="audit: sample 3 reached no rank")
    found = stand(FOUR, wrong)
    best = best_of(found)
    assert best is not None and best.name == "distributed + private"
    assert "keyed + shared is wrong: sample 3 reached no rank." in said(found, FOUR, wrong)


def test_the_best_holds_one_copy_and_is_the_fastest_of_those():
    slow_but_one = turns("accelerate", "reader", [10] * 5, **held(1.0))
    fast_but_four = turns("accelerate-shard", "private", [900] * 5, **held(4.0))
    found = stand(FOUR, slow_but_one, fast_but_four, ONE)
    best = best_of(found)
    assert best is not None and best.name == "keyed + shared"
    text = said(found, FOUR, slow_but_one, fast_but_four, ONE)
    assert "Use keyed + shared: it holds one copy" in text
    assert "2.00 times (2.00 to 3.00) as fast as distributed + private, which holds 4.0 copies" in text
    assert "saves 768.0 MiB on each node" in text
    faster = "accelerate-shard + private is 4.50 times (2.73 to 5.00) as fast, and holds 4.00 copies (3.95 to 4.05)."
    assert faster in text


def test_where_the_runs_cannot_tell_two_apart_both_are_named():
    text = said(stand(FOUR, ONE, OTHER), FOUR, ONE, OTHER)
    assert "Use ring + shared" in text and "keyed + shared cannot be told from it, 1.03 times" in text


def test_without_one_copy_the_fewest_and_without_figures_the_fastest():
    three = turns("accelerate-shard", "private", [50] * 5, **held(3.0))
    best = best_of(stand(FOUR, three))
    assert best is not None and best.name == "accelerate-shard + private"
    unknown = [row | dict.fromkeys(held(1), "") | {"reason": "copies: too small"} for row in (*FOUR, *ONE)]
    found = stand(unknown)
    best = best_of(found)
    assert best is not None and best.name == "keyed + shared"
    assert "Copies of the dataset are not known (too small)" in said(found, unknown)


def test_a_configuration_that_failed_is_told_of_and_never_best():
    failed = [run_row("ring", "shared", status="failed", reason="run: rank 2 failed: no memory; census_copies: x")]
    found = stand(FOUR, failed)
    assert best_of(found) is not None and found[-1].name == "ring + shared"
    assert "ring + shared failed: rank 2 failed: no memory." in said(found, FOUR, failed)
    assert best_of(stand(failed)) is None
    assert "nothing to choose from" in said(stand(failed), failed)


@pytest.mark.parametrize(
    ("figures", "most", "passes"),
    [(held(1.2, 0.05), 1.1, False), (held(1.2, 0.2), 1.1, True), (held(1.05, 0.01), 1.1, True)],
)
def test_the_gate_of_copies_fails_only_where_the_whole_interval_is_above(
    figures: dict[str, Any], most: float, passes: bool
):
    (gate,) = judged(stand(FOUR, turns("keyed", "shared", [1] * 5, **figures)), most, None)
    assert (gate.name, gate.passed) == ("keyed + shared", passes)


@pytest.mark.parametrize(
    ("speeds", "passes"),
    [([80, 88, 72, 80, 80], False), ([80, 110, 72, 80, 110], True), ([91, 100, 82, 91, 91], True)],
)
def test_the_gate_of_ratios_fails_only_where_the_whole_interval_is_below(speeds: list[float], passes: bool):
    (gate,) = judged(stand(FOUR, turns("keyed", "shared", speeds, **held(1))), None, 0.9)
    assert gate.passed is passes


def test_a_gate_without_a_figure_fails_and_says_why():
    unknown = [row | dict.fromkeys(held(1), "") | {"reason": "copies: too small"} for row in ONE]
    (gate,) = judged(stand(FOUR, unknown), 1.1, None)
    assert not gate.passed and "too small" in gate.sentence


def test_four_runs_have_no_interval_and_decide_no_gate():
    found = stand(FOUR[:4], ONE[:4])
    assert [(each.samples_per_s, each.samples_per_s_low, each.ratio_high) for each in found] == [
        (200, None, None), (100, None, None),
    ]  # fmt: skip
    (gate,) = judged(found, None, 0.9)
    assert not gate.passed and "--repeats 5" in gate.sentence
    assert "200 different samples/s." in said(found, FOUR[:4], ONE[:4])
    assert "too few runs for an interval" in said(found, FOUR[:4], ONE[:4])


def test_a_baseline_alone_is_held_to_copies():
    copies, speed = judged(stand(FOUR), 1.1, 0.9)
    assert (copies.name, copies.passed) == ("distributed + private", False)
    assert not speed.passed and "nothing to hold it against" in speed.sentence


def test_a_baseline_that_nobody_named_is_held_to_copies_too():
    assert [gate.passed for gate in judged(stand(FOUR, ONE), 1.1, None, named=False)] == [True, False]
    assert [gate.passed for gate in judged(stand(FOUR, ONE), 1.1, None)] == [True]


def test_a_gate_says_that_the_baseline_is_what_has_no_figure():
    failed = [run_row("distributed", "private", status="failed", reason="run: rank 1 failed: no memory")]
    (gate,) = judged(stand(failed, ONE), None, 0.9)
    assert not gate.passed and "the baseline, distributed + private, has no samples/s: rank 1 failed" in gate.sentence


def test_without_a_name_the_baseline_is_the_first_that_ended_well():
    failed = [run_row("distributed", "private", status="failed", reason="run: x")]
    rows = groups_of(failed, ONE, OTHER)
    assert set(one_baseline(rows, None).values()) == {"keyed + shared"}
    assert one_baseline(groups_of(failed), None) == {}
    assert set(one_baseline(rows, "ring+shared").values()) == {"ring + shared"}
    with pytest.raises(UsageError, match="sharded"):
        one_baseline(rows, "sharded")


def test_a_sampler_that_was_named_and_not_measured_fails_the_gates():
    wanted = CompareConfig("distributed,keyed", max_copies=5.0)
    rows = groups_of(FOUR)
    left_out = ["keyed + reader: --store must fit"]
    answer = answered(rows, one_baseline(rows, None), wanted, "c", left_out)
    assert answer.code == 4 and any("not measured, keyed + reader" in gate.sentence for gate in answer.held)


@pytest.mark.parametrize(
    ("groups", "code"),
    [
        ([FOUR, ONE], 0),
        ([FOUR, turns("keyed", "shared", [1.0], status="audit", reason="audit: x")], 3),
        ([[run_row("keyed", "shared", status="failed", reason="run: x")]], 1),
        ([FOUR, [run_row("keyed", "shared", status="failed", reason="run: x")]], 0),
    ],
)
def test_exit_codes(groups: list[list[dict[str, str]]], code: int):
    rows = groups_of(*groups)
    assert answered(rows, one_baseline(rows, None), CompareConfig()).code == code


def test_where_no_speed_is_known_that_is_said_and_nothing_failed():
    streams = [row | {"samples_per_s": "", "reason": "samples_per_s: several processes read"} for row in ONE]
    rows = groups_of(streams)
    answer = answered(rows, one_baseline(rows, None), CompareConfig())
    assert answer.code == 0 and "Which is faster is not known: several processes read." in answer.said


def test_what_is_not_clear_of_one_copy_is_not_called_one():
    wide = turns("keyed", "shared", [200] * 5, **held(1.9, 0.95))
    assert "1.9 copies (0.95 to 2.85), not clear of one copy" in said(stand(FOUR, wide), FOUR, wide)


def test_reasons_with_semicolons_are_told_to_their_end():
    why = "run: got 'x'; choose from a, b. Cure: use a; copies: unknown"
    failed = [run_row("ring", "shared", status="failed", reason=why)]
    assert "ring + shared failed: got 'x'; choose from a, b. Cure: use a." in said(stand(FOUR, failed), FOUR, failed)


def test_the_ranking_fits_a_hundred_columns(capsys: pytest.CaptureFixture[str]):
    speeds = [1_234_567, 1_300_000, 1_500_000, 1_300_000, 1_300_000]
    wide = turns("accelerate-split", "inherited", speeds, workers=16, **held(12.5, 2.0))
    console(json=False).print(ranking(stand(FOUR, ONE, wide)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "1,300,000" in "".join(lines) and "base" in "".join(lines)


def test_the_dictionary_has_the_columns_of_the_ranking_in_order():
    text = DICTIONARY.read_text().partition("## compare.csv")[2]
    assert [*entries("## compare.csv" + text)] == [field.name for field in dataclasses.fields(Standing)]


def test_rows_by_hand_have_the_columns_of_the_file():
    assert list(FOUR[0]) == list(columns("runs"))

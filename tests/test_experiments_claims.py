"""What the experiments on claims say of figures that were worked by hand."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "experiments"))

import claims
import copies_by_start
import copies_cases
from claim_rows import (
    Row,
    answered,
    conclusion,
    finished,
    line,
    one_copy,
    own_part,
    replicated,
    same_curve,
    word,
)
from claim_runs import Configuration, Lab, trained
from commands import held_mib_by_rank
from shardlab.measure import pagecache

BLANK = Row("x / y", "x", "y", "", ranks=4, exit_code=0)


def interval(low: float, high: float) -> Row:
    return replace(BLANK, copies=(low + high) / 2, copies_low=low, copies_high=high)


def under(limit: int | None, kills: int, code: int) -> Row:
    return replace(BLANK, limit_bytes=limit, peak_bytes=5, oom_kills=kills, exit_code=code)


@pytest.mark.parametrize(
    ("low", "high", "one"),
    [(0.9, 1.1, True), (0.0, 1.4, True), (3.9, 4.1, False), (1.6, 2.4, False), (0.9, 2.1, None)],
)
def test_one_copy_is_told_from_more_only_where_the_whole_interval_says_so(
    low: float, high: float, one: bool | None
) -> None:
    row = interval(low, high)
    assert one_copy(row) is one
    assert replicated(row) is (None if one is None else not one)


def test_a_figure_that_is_not_there_answers_nothing() -> None:
    for says in (one_copy, replicated, own_part, same_curve):
        assert says(BLANK) is None
    assert word(BLANK, None) == "not clear"
    assert word(replace(BLANK, exit_code=None), None) == "not run here"


def test_a_rank_of_four_may_hold_a_quarter_and_the_shards_at_its_borders() -> None:
    assert own_part(replace(BLANK, held_ratio=0.27, border_ratio=0.03)) is True
    assert own_part(replace(BLANK, held_ratio=0.29, border_ratio=0.03)) is False
    assert own_part(replace(BLANK, held_ratio=1.0, border_ratio=0.03)) is False


@pytest.mark.parametrize(("low", "own"), [(3.9, False), (1.13, False), (1.1, None), (0.0, None)])
def test_ranks_that_do_not_say_hold_more_than_their_parts_where_the_node_does(low: float, own: bool | None) -> None:
    """Four quarters with a border of 0.03 each are 1.12 copies at the most."""
    assert own_part(replace(interval(low, low + 0.2), border_ratio=0.03)) is own


def test_finishing_says_something_only_under_a_limit_that_killed_private_copies() -> None:
    private, shared, free = under(10, 1, 1), under(10, 0, 0), under(None, 0, 0)
    assert finished(private, [free, private]) is False
    assert finished(shared, [free, private, shared]) is True
    assert finished(shared, [free, under(10, 0, 0), shared]) is None
    failed = under(10, 0, 1)  # without a kill: a fault of its own, which says nothing of memory
    assert finished(failed, [free, private, failed]) is None
    assert word(failed, None) == "not clear"
    assert word(free, finished(free, [free])) == ""


def test_a_claim_is_true_with_some_and_false_with_others() -> None:
    names = {"a": "true", "b": "false", "c": "true", "d": "not run here", "e": ""}
    rows = answered([replace(BLANK, configuration=name, answer=answer) for name, answer in names.items()])
    assert {row.claim_answer for row in rows} == {"true with a, c; false with b; not run here: d"}
    assert {row.claim_answer for row in answered(rows[:1])} == {"true"}
    assert conclusion(rows[0]).startswith("   -> true with a, c;")


@pytest.mark.parametrize("full", [False, True])
def test_each_row_has_a_key_of_its_own_and_fits_the_screen(full: bool) -> None:
    names = []
    for claim in claims.CLAIMS:
        asked = claim.configurations + (claim.more if full else ())
        names += [f"{claim.letter} {configuration.name}" for configuration in asked]
        for configuration in asked:
            reads = " ".join(["21846"] * configuration.ranks)
            row = replace(interval(11.99, 12.09), configuration=configuration.name, reads_by_rank=reads)
            assert len(line(replace(row, answer="false"))) <= 100
    assert len(set(names)) == len(names)
    cases = list(copies_cases.all_cases() if full else copies_cases.few_cases())
    assert len({case.name for case in cases}) == len(cases)
    assert set(copies_cases.few_cases()) <= set(copies_cases.all_cases())


def test_curves_are_compared_with_the_first_one_or_with_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = {"a": "", "b": "2 1", "c": "2 1"}

    @dataclass(frozen=True)
    class Trained:
        losses: list[float]
        code: int = 0
        said: str = "reason"

    def command(_lab: Lab, _module: str, flags: str) -> Trained:
        losses = [float(loss) for loss in curves[flags].split()]
        return Trained(losses, code=0 if losses else 1)

    monkeypatch.setattr(Lab, "command", command)
    asked = [Configuration(name, name) for name in curves]
    rows = list(trained(Lab(tmp_path, 64), "f: claim", asked))
    assert [row.loss_difference_ratio for row in rows] == [None, None, None]
    assert "not compared" in line(rows[1])
    assert [row.loss_difference_ratio for row in trained(Lab(tmp_path, 64), "f: claim", asked[1:])] == [0.0, 0.0]


def test_shards_are_not_in_memory_when_a_group_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "0.bin").write_bytes(b"x")
    evicted: list[Path] = []
    monkeypatch.setattr(Lab, "larger_shards", tmp_path)
    monkeypatch.setattr(pagecache, "evict", evicted.append)
    Lab(tmp_path, 64).evict("--dataset {dataset}")
    assert not evicted
    Lab(tmp_path, 64).evict("--dataset {larger_shards}")
    assert evicted == [tmp_path / "part" / "0.bin"]


def test_published_flags_name_no_temporary_folder(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 64)
    assert lab.published("--dataset {larger_shards}") == "--dataset SHARDS-OF-synthetic:128MiB:3x64x64"
    assert lab.published("--dataset {dataset} --nproc 2") == "--dataset synthetic:64MiB:3x64x64 --nproc 2"
    assert not list(tmp_path.iterdir())


def test_bytes_held_are_read_from_a_line_that_the_screen_broke() -> None:
    said = "note\nBytes held, of shards opened: rank 0 1,024.0 MiB, rank 1 64.5 MiB, rank\n2 0.0 MiB.\n\nrank reads"
    assert held_mib_by_rank(said) == (1024.0, 64.5, 0.0)
    assert held_mib_by_rank("rank reads 64.0 MiB") == ()


def test_a_shared_list_is_less_than_one_as_it_was_built() -> None:
    assert copies_by_start.built_ratio(2.0, 0, 50, 200) == 0.5
    assert copies_by_start.built_ratio(None, 40, 50, 200) == 0.2

"""What the verdict says is read off the record: the right sentence, and no number of its own."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest

from by_hand import MIB, audit, node, outcome, report
from shardlab.index.rules import Finding
from shardlab.launch.summary import Outcome
from shardlab.verdict import verdict
from shardlab.words import mib, spans

FOUR = node(
    copies=4.012, copies_low=3.961, copies_high=4.063, dataset_bytes=256 * MIB, duplicate_bytes=771 * MIB,
    inflight_bytes=0, retained_bytes=0,
)  # fmt: skip
ONE = node(
    copies=1.018, copies_low=0.967, copies_high=1.069, dataset_bytes=256 * MIB, duplicate_bytes=5 * MIB,
    inflight_bytes=0, retained_bytes=0,
)  # fmt: skip
ALL_CAME = {"delivered": 48, "distinct": 37, "duplicates": 11, "missing": 0, "world_size": 3}


def text(**given: Any) -> str:
    return "\n".join(verdict(outcome(**given)))


# Memory


def test_four_copies_are_named_with_their_interval_what_is_duplicate_and_a_cure() -> None:
    said = verdict(outcome(nodes=[FOUR]))
    assert said[0] == ("This node holds 4.0 copies of the dataset (3.96 to 4.06), 771.0 MiB of it duplicate.")
    assert said[1] == "Keep one copy with --store shared."


def test_one_copy_has_nothing_to_save() -> None:
    said = verdict(outcome(nodes=[ONE], store="shared"))
    assert said == ["This node holds 1.0 copies of the dataset (0.97 to 1.07): nothing to save."]


def test_an_interval_that_reaches_one_copy_is_not_called_many() -> None:
    vague = node(
        copies=1.3, copies_low=0.8, copies_high=1.8, dataset_bytes=40 * MIB, duplicate_bytes=12 * MIB
    )
    said = verdict(outcome(nodes=[vague]))
    assert said == ["This node holds 1.3 copies of the dataset (0.80 to 1.80): not clear of one copy."]


def test_unreadable_processes_make_it_a_lower_bound() -> None:
    hidden = node(
        copies=2.5, copies_low=2.4, copies_high=2.6, dataset_bytes=MIB, duplicate_bytes=2 * MIB, unreadable=3
    )
    assert "holds at least 2.5 copies" in text(nodes=[hidden])


def test_each_of_several_nodes_is_named() -> None:
    nodes = [node(**asdict(FOUR) | {"node": "alpha"}), node(**asdict(ONE) | {"node": "beta"})]
    said = text(nodes=nodes)
    assert "Node alpha holds 4.0 copies" in said
    assert "Node beta holds 1.0 copies" in said


def test_unknown_copies_come_with_their_reason() -> None:
    why = "copies: the dataset holds 25.0 MiB in memory; census_copies: not read"
    said = verdict(outcome(nodes=[node()], measured={"reason": why}))
    assert said == ["This node: copies of the dataset not known: the dataset holds 25.0 MiB in memory."]


def test_ranks_that_never_read_are_named_with_a_store_for_one_reader() -> None:
    """As in accelerate#3001: rank 0 reads, all hold a copy."""
    reports = [report(rank, reads=40 if rank == 0 else 0) for rank in range(4)]
    said = text(nodes=[FOUR], reports=reports, sampler="accelerate")
    assert "Ranks 1-3 never read theirs: keep one copy with --store reader or --store shared." in said
    two = text(nodes=[FOUR], reports=reports[:2], sampler="accelerate")
    assert "Rank 1 never reads its: keep one copy with" in two


@pytest.mark.parametrize(
    ("method", "how"), [("fork", "most likely by reference counts after fork"), ("spawn", "sent to each")]
)
def test_more_copies_than_ranks_are_the_workers(method: str, how: str) -> None:
    many = node(**asdict(FOUR) | {"copies": 11.9, "copies_low": 11.7, "copies_high": 12.1})
    said = text(nodes=[many], workers=2, worker_start_method=method)
    assert f"More copies than ranks: the workers of each rank hold theirs, {how}." in said


def test_a_path_without_a_sharing_store_is_not_told_to_use_one() -> None:
    said = text(nodes=[FOUR], sampler="sharded")
    assert "--store" not in said
    assert "Keep one copy with a dataset that ranks can share." in said


def test_what_is_in_flight_is_no_copy() -> None:
    """As in pytorch#62066."""
    busy = node(**asdict(ONE) | {"inflight_bytes": 98 * MIB})
    said = text(nodes=[busy], store="shared", workers=4)
    assert "Up to 98.0 MiB of batches are in flight from workers; those are no copies." in said
    assert "nothing to save" in said


def test_what_the_allocator_holds_is_no_copy() -> None:
    stacked = node(**asdict(FOUR) | {"retained_bytes": 250 * MIB})
    assert "The allocator held 250.0 MiB that nothing used; those are no copies." in text(nodes=[stacked])


def test_little_in_flight_or_retained_is_not_worth_a_sentence() -> None:
    little = node(**asdict(ONE) | {"inflight_bytes": 12 * MIB, "retained_bytes": 12 * MIB})  # of 256
    assert len(verdict(outcome(nodes=[little], store="shared", workers=4))) == 1


# Delivery


@pytest.mark.parametrize(
    ("measured", "flags", "said"),
    [
        (ALL_CAME, {}, "All 37 samples arrived, with 11 repeats to fill the last round (--tail pad)."),
        (ALL_CAME | {"delivered": 38, "duplicates": 1}, {}, "All 37 samples arrived, with 1 repeat to fill"),
        (ALL_CAME | {"delivered": 37, "duplicates": 0}, {}, "All 37 samples arrived, none twice."),
        (
            {"delivered": 36, "distinct": 36, "duplicates": 0, "missing": 1}, {"tail": "drop"},
            "36 samples arrived once; 1 were left out by --tail drop.",
        ),
        (
            {"delivered": 80, "distinct": 20, "duplicates": 60, "missing": None}, {},
            "20 different samples arrived; how many there are is not known.",
        ),
    ],
)  # fmt: skip
def test_what_arrived_is_said_in_one_sentence(
    measured: dict[str, Any], flags: dict[str, Any], said: str
) -> None:
    assert said in text(measured=measured, **flags)


def test_an_epoch_is_said_to_end_early_only_where_the_limit_cut_it() -> None:
    cut = [report(rank, steps=2, len_reported=4) for rank in range(3)]
    measured = {"delivered": 24, "distinct": 24, "duplicates": 0, "missing": 13}
    said = "24 different samples arrived before --max-steps ended the epoch, none twice."
    assert said in text(reports=cut, measured=measured, max_steps=2)
    whole = [report(rank, steps=4, len_reported=4) for rank in range(3)]
    assert "All 37 samples arrived" in text(reports=whole, measured=ALL_CAME, max_steps=9)


def test_no_count_of_samples_is_larger_than_the_dataset() -> None:
    """One sample for three ranks comes three times: two repeats, not two samples."""
    measured = {"delivered": 3, "distinct": 1, "duplicates": 2, "missing": 0}
    assert "All 1 samples arrived, with 2 repeats to fill the last round" in text(measured=measured)


def test_what_workers_read_for_nobody_is_named() -> None:
    """As in accelerate#2179."""
    reports = [report(0, reads=200), report(1, reads=16)]
    measured = {"delivered": 200, "distinct": 200, "duplicates": 0, "missing": 0}
    said = text(reports=reports, measured=measured, sampler="accelerate", workers=2)
    assert "16 samples were read that no rank was given: workers fetched them ahead." in said


def test_a_finding_comes_with_its_name_place_and_cure_and_no_praise() -> None:
    finding = Finding("order", 2, 1, 1, 2, "rank 2, step 1, place 2: sample 26 came.", "deal out range(n)")
    said = text(audits=[audit(finding)], measured=ALL_CAME)
    assert "Wrong (order): rank 2, step 1, place 2: sample 26 came. Cure: deal out range(n)." in said
    assert "arrived" not in said


# Speed


def test_the_speed_names_the_rank_that_waited_longest() -> None:
    reports = [report(0, wait_s=0.5), report(1, wait_s=2.346), report(2, wait_s=1.0)]
    said = text(reports=reports, measured={"samples_per_s": 12345.6, "world_size": 3, "stall_ratio": 0.4321})
    assert (
        "12,346 different samples/s on 3 ranks; ranks stall 43% of their time; rank 1 waited longest for its "
        "batches, 2.35 s." in said
    )


def test_only_the_last_epoch_counts_for_who_waited() -> None:
    reports = [report(0, epoch=1, wait_s=9.0), report(0, epoch=2, wait_s=1.25)]
    said = text(reports=reports, measured={"samples_per_s": 10.0, "world_size": 1})
    assert "1.25 s" in said
    assert "9.00" not in said


def test_an_unknown_speed_is_not_mentioned() -> None:
    assert "samples/s" not in text(reports=[report(0)])


# Numbers


def numbers_of(record: Any) -> set[str]:
    """Every number of a record, in each way that it may be written."""
    found: set[str] = set()
    for value in flat(record):
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, str):
            found |= set(re.findall(r"\d+(?:\.\d+)?", value))
        elif isinstance(value, int | float):
            found |= {f"{value:.{digits}f}" for digits in (0, 1, 2)}
            found |= {f"{value / MIB:.1f}", f"{100 * value:.0f}"}
    return found


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [inner for part in value.values() for inner in flat(part)]
    return [inner for part in value for inner in flat(part)] if isinstance(value, list | tuple) else [value]


BUSY = {
    "nodes": [
        node(
            copies=5.731, copies_low=5.611, copies_high=5.851, dataset_bytes=311 * MIB, duplicate_bytes=1471 * MIB,
            inflight_bytes=97 * MIB, retained_bytes=83 * MIB, unreadable=2,
        )
    ],
    "reports": [
        report(rank, reads=reads, wait_s=wait_s)
        for rank, (reads, wait_s) in enumerate([(401, 0.31), (59, 0.73), (61, 0.19), (67, 0.53)])
    ],
    "measured": {
        "delivered": 404, "distinct": 401, "duplicates": 3, "missing": 0, "samples_per_s": 7919.0,
        "world_size": 4, "stall_ratio": 0.83,
    },
    "sampler": "accelerate", "workers": 2,
}  # fmt: skip


@pytest.mark.parametrize("given", [
    BUSY,
    {**BUSY, "nodes": [FOUR]},
    {**BUSY, "nodes": [ONE]},
    {**BUSY, "measured": ALL_CAME | {"missing": 6, "distinct": 31, "samples_per_s": 3.0}},
    {**BUSY, "audits": [audit(Finding("missing", None, 1, None, None, "sample 313 reached no rank", "look"))]},
], ids=["busy", "four", "one", "dropped", "wrong"])  # fmt: skip
def test_every_number_that_is_said_is_one_of_the_records(given: dict[str, Any]) -> None:
    run: Outcome = outcome(**given)
    known = numbers_of(asdict(run))
    rows = [report.row for report in run.reports]
    known.add(str(sum(row.reads or 0 for row in rows) - (run.run.measured.delivered or 0)))  # read for nobody
    known |= {str(rank) for rank in range(4)}
    for sentence in verdict(run):
        said = re.findall(r"\d+(?:\.\d+)?", sentence.replace(",", ""))
        assert set(said) <= known, sentence


# Words


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([], ""), ([4], "4"), ([1, 2, 3], "1-3"), ([5, 1, 2, 3], "1-3, 5"), ([0, 2, 4], "0, 2, 4")],
)
def test_runs_of_numbers_are_spans(numbers: list[int], said: str) -> None:
    assert spans(numbers) == said


@pytest.mark.parametrize(
    ("nbytes", "said"), [(None, "-"), (0, "0.0"), (MIB, "1.0"), (1536 * MIB, "1,536.0"), (MIB // 2, "0.5")]
)
def test_bytes_are_shown_as_mebibytes(nbytes: int | None, said: str) -> None:
    assert mib(nbytes) == said

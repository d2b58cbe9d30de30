"""A run's row from what its ranks left: figures worked out by hand from reports and ledgers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import by_hand
from by_hand import MIB, node_outcome, reading, report
from shardlab.dataset import synthetic
from shardlab.engine.job import Job
from shardlab.engine.report import EpochReport, load_reports
from shardlab.index.ledger import Ledger
from shardlab.launch.summary import Outcome, audit_epochs, ledger_file, outcome_of
from shardlab.records import row

LAYOUT = synthetic.parse("n=8:3")
CLEAN = [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]  # by rank and step: strided, 8 samples, batches of two


def keep(folder: Path, epoch: int, ranks: list[list[list[int]]], spoil: dict[int, int] | None = None) -> None:
    """Ledgers of an epoch as the ranks write them; ``spoil`` gives a sample another one's content."""
    for rank, steps in enumerate(ranks):
        log = Ledger.create(ledger_file(folder, epoch, rank), 4, words=True)
        for indices in steps:
            content = [(spoil or {}).get(index, index) for index in indices]
            log.write(np.array(indices, np.int64), synthetic.first_words(LAYOUT, np.array(content, np.int64)))
        log.close()


def job(folder: Path, **flags: Any) -> Job:
    flags = {"nproc": 2, "batch_size": 2, "dataset": "synthetic:n=8:3", "shuffle": False} | flags
    return by_hand.job(folder, samples=8, **flags)


def of(
    the_job: Job, reports: list[EpochReport], failure: str = "", nodes: Any = None, **hold: Any
) -> Outcome:
    nodes = nodes or [node_outcome(reading(3000 * MIB, **hold), reading(2000 * MIB), control_dataset_bytes=0)]
    for number, entry in enumerate(nodes):
        nodes[number] = by_hand.replace(entry, local_world_size=2 // len(nodes))
    return outcome_of(the_job, "then", nodes, tuple(reports), {"kernel": "6"}, failure)


def clean_reports(**given: Any) -> list[EpochReport]:
    return [report(rank, steps=2, len_reported=2, delivered=4, **given) for rank in range(2)]


# Audits


def test_every_timed_epoch_is_judged(tmp_path: Path) -> None:
    for epoch in (1, 2):
        keep(tmp_path, epoch, CLEAN)
    reports = clean_reports(epoch=1) + clean_reports(epoch=2)
    audits = audit_epochs(job(tmp_path), tuple(reports), 2)
    assert [(audit.delivered, audit.distinct, audit.missing, audit.findings) for audit in audits] == [
        (8, 8, 0, ())
    ] * 2


def test_an_epoch_that_a_rank_did_not_finish_is_not_judged(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    reports = [*clean_reports(epoch=1), report(0, epoch=2)]
    assert len(audit_epochs(job(tmp_path), tuple(reports), 2)) == 1


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([[[0, 2], [4, 6]], [[1, 3], [5, 5]]], "duplicated"),
        ([[[0, 2], [4, 6]], [[1, 3], [7, 5]]], "order"),
        ([[[0, 2], [4, 6]], [[1, 3], [5, 8]]], "foreign"),
    ],
)
def test_a_fault_makes_the_run_one_that_failed_its_audit(ranks: Any, name: str, tmp_path: Path) -> None:
    keep(tmp_path, 1, ranks)
    run = of(job(tmp_path), clean_reports())
    assert name in [finding.name for finding in run.findings]
    assert run.run.measured.status == "audit"


def test_the_content_of_synthetic_samples_is_judged_too(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN, spoil={5: 6})
    run = of(job(tmp_path), clean_reports())
    assert [(f.name, f.rank, f.step, f.position) for f in run.findings] == [("content", 1, 1, 0)]


def test_the_order_is_held_against_the_layout_of_the_path(tmp_path: Path) -> None:
    """Strided is right for one and wrong for the other."""
    keep(tmp_path, 1, CLEAN)
    assert of(job(tmp_path), clean_reports()).findings == ()
    wrong = of(job(tmp_path, sampler="accelerate-shard"), clean_reports())
    assert [finding.name for finding in wrong.findings] == ["order"]


def test_a_length_that_lies_is_found(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    reports = [report(0, steps=2, len_reported=2), report(1, steps=2, len_reported=3)]
    assert [(f.name, f.rank) for f in of(job(tmp_path), reports).findings] == [("length", 1)]


# Figures


def test_the_speed_is_of_distinct_samples_over_the_slowest_rank_of_each_epoch(tmp_path: Path) -> None:
    """Epochs of 4 s and 3 s at their slowest, eight samples each."""
    for epoch in (1, 2):
        keep(tmp_path, epoch, CLEAN)
    walls = {(1, 0): 2.0, (1, 1): 4.0, (2, 0): 3.0, (2, 1): 1.0}
    reports = [
        report(rank, epoch=epoch, steps=2, len_reported=2, wall_s=wall, batch_bytes=12)
        for (epoch, rank), wall in walls.items()
    ]
    measured = of(job(tmp_path), reports).run.measured
    assert measured.samples_per_s == pytest.approx(16 / 7)
    assert measured.bytes_per_s == pytest.approx(48 / 7)
    assert (measured.delivered, measured.distinct) == (8, 8)  # of the last epoch


def test_repeats_make_nothing_faster(tmp_path: Path) -> None:
    """Twelve deliveries of eight samples in 2 s are four samples a second; of bytes, two thirds count."""
    keep(tmp_path, 1, [[[0, 2], [4, 6], [0, 2]], [[1, 3], [5, 7], [1, 3]]])
    reports = [report(rank, wall_s=2.0, batch_bytes=18, steps=3, len_reported=3) for rank in range(2)]
    measured = of(job(tmp_path), reports).run.measured
    assert measured.samples_per_s == pytest.approx(4)
    assert measured.bytes_per_s == pytest.approx(36 * 8 / 12 / 2)
    assert (measured.delivered, measured.distinct, measured.duplicates, measured.missing) == (12, 8, 4, 0)


def test_a_stall_is_waiting_over_waiting_and_work(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    reports = [
        report(0, wait_s=1.0, compute_s=2.0, steps=2, len_reported=2),
        report(1, wait_s=3.0, compute_s=4.0, steps=2, len_reported=2),
    ]
    assert of(job(tmp_path), reports).run.measured.stall_ratio == pytest.approx(0.4)


def test_where_nothing_computes_a_stall_has_no_meaning_and_the_reason_says_so(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    measured = of(job(tmp_path), clean_reports()).run.measured
    assert measured.stall_ratio is None
    assert "stall_ratio: nothing computes (--compute none)" in measured.reason


def test_processor_time_is_per_thousand_distinct_samples(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    measured = of(job(tmp_path), clean_reports(cpu_s=0.02)).run.measured
    assert measured.cpu_s_per_1k_samples == pytest.approx(1000 * 0.04 / 8)


def test_processor_time_that_a_rank_does_not_know_is_not_a_part_of_it(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    reports = [report(0, cpu_s=0.5, steps=2, len_reported=2), report(1, cpu_s=None, steps=2, len_reported=2)]
    assert of(job(tmp_path), reports).run.measured.cpu_s_per_1k_samples is None


def test_the_first_batch_is_that_of_the_rank_that_waited_longest_for_it(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    reports = [
        report(rank, first_batch_s=first, steps=2, len_reported=2) for rank, first in enumerate([0.25, 0.75])
    ]
    assert of(job(tmp_path), reports).run.measured.first_batch_s == 0.75


def test_steps_are_the_fewest_and_the_most_of_any_rank(tmp_path: Path) -> None:
    keep(tmp_path, 1, [[[0, 2], [4, 6], [7]], [[1, 3], [5]]])
    reports = [report(0, steps=3, len_reported=3), report(1, steps=2, len_reported=2)]
    run = of(job(tmp_path, sampler="accelerate-shard", tail="keep", shuffle=True), reports)
    assert (run.run.measured.steps_min, run.run.measured.steps_max) == (2, 3)


def test_the_order_hash_is_that_of_the_last_epoch_and_of_no_other_order(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    keep(tmp_path, 2, [list(reversed(steps)) for steps in CLEAN])
    the_job = job(tmp_path, shuffle=True)
    first = of(the_job, clean_reports(epoch=1)).run.measured.order_hash
    both = of(the_job, clean_reports(epoch=1) + clean_reports(epoch=2)).run.measured.order_hash
    assert first is not None
    assert first != both == of(the_job, clean_reports(epoch=2)).run.measured.order_hash


def test_the_fullest_node_speaks_for_the_run(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    nodes = [
        node_outcome(reading(used * MIB), reading(2000 * MIB), control_dataset_bytes=0, node=name)
        for name, used in (("a", 2400), ("b", 3600), ("c", 2800))
    ]
    sizes = [
        by_hand.replace(one, local_world_size=ranks) for one, ranks in zip(nodes, (1, 1, 0), strict=True)
    ]
    run = outcome_of(job(tmp_path), "then", sizes, tuple(clean_reports()), {})
    assert [node.copies for node in run.nodes] == pytest.approx([1, 4, 2])
    assert run.run.measured.copies == pytest.approx(4)
    assert run.run.measured.nnodes == 3


# Ends


def test_a_run_that_failed_keeps_what_its_ranks_reported_and_claims_no_more(tmp_path: Path) -> None:
    keep(tmp_path, 1, [[[0, 0], [0, 0]], [[1, 3], [5, 7]]])
    run = of(job(tmp_path), clean_reports(), failure="rank 1 failed: killed by SIGKILL")
    measured = run.run.measured
    assert measured.status == "failed"
    assert measured.reason.startswith("run: rank 1 failed: killed by SIGKILL")
    assert run.audits == run.findings == ()
    assert (measured.delivered, measured.samples_per_s) == (None, None)
    assert len(run.reports) == 2


def test_a_run_without_a_single_report_has_a_row(tmp_path: Path) -> None:
    measured = of(job(tmp_path), [], failure="no rank started").run.measured
    assert (measured.steps_min, measured.loader_class, measured.order_hash) == (None, None, None)


def test_every_cell_that_could_have_been_measured_and_is_empty_has_a_reason(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    run = of(job(tmp_path), clean_reports(cpu_s=0.1, first_batch_s=0.1), retained_bytes=5)
    empty = {name for name, value in row(run.run.measured).items() if value is None}
    of_train, of_the_monitor = (
        {"accuracy", "loss"},
        {"pss_peak_bytes", "monitor_cpu_s"},
    )  # no monitor ran here
    explained = {part.split(":")[0] for part in run.run.measured.reason.split("; ")}
    assert empty - of_train - of_the_monitor == explained == {"census_copies", "census_cpu_s", "stall_ratio"}


def test_a_row_has_the_environment_and_the_config(tmp_path: Path) -> None:
    keep(tmp_path, 1, CLEAN)
    cells = row(of(job(tmp_path), clean_reports()).run)
    assert (cells["kernel"], cells["sampler"], cells["batch_size"], cells["started_at"]) == (
        "6", "distributed", 2, "then",
    )  # fmt: skip


def test_reports_come_back_from_the_folder_by_epoch_and_rank(tmp_path: Path) -> None:
    made = [report(rank, epoch=epoch, wait_s=rank + epoch / 8) for epoch in (10, 9) for rank in (1, 0)]
    for one in made:
        one.save(tmp_path)
    (tmp_path / "report-11-0.partial").write_text("{")
    loaded = load_reports(tmp_path)
    assert [(one.row.epoch, one.row.rank) for one in loaded] == [(9, 0), (9, 1), (10, 0), (10, 1)]
    assert sorted(map(repr, loaded)) == sorted(map(repr, made))

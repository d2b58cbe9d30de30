"""The arithmetic of copies on figures worked out by hand, and the reason where there is no figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import by_hand
from by_hand import MIB, node_outcome, reading, report
from shardlab.launch.copies import NOISE_BYTES_PER_PROCESS, Copies, node_record
from shardlab.measure.supervise import MonitorEnd

SIZE, STAND_IN = 400 * MIB, 10 * MIB
END = MonitorEnd(7000, 9000, 0.25, 0.5, 0.125, 10)


def recorded(tmp_path: Path, hold: Any, control: Any, reports: Any = (), **given: Any) -> Any:
    flags = given.pop("flags", {})
    outcome = node_outcome(hold, control, control_dataset_bytes=STAND_IN, **given)
    return node_record(by_hand.job(tmp_path, **flags), outcome, tuple(reports))


@pytest.mark.parametrize(
    ("used", "copies"),
    [(2000 + 4 * 390, 4.0), (2000 + 390, 1.0), (2000, 0.0), (2000 + 195, 0.5)],
)
def test_copies_are_what_is_used_beyond_the_control_over_what_the_dataset_is_larger(
    used: int, copies: float, tmp_path: Path
) -> None:
    """A control that holds 10 of 400 MiB leaves 390 for each copy."""
    node, reasons = recorded(tmp_path, reading(used * MIB), reading(2000 * MIB))
    assert node.copies == pytest.approx(copies)
    assert reasons == {}


def test_the_interval_is_the_noise_of_all_processes_over_one_copy(tmp_path: Path) -> None:
    """Five processes of 4 MiB each: 20 of 390 MiB."""
    assert NOISE_BYTES_PER_PROCESS == 4 * MIB
    node, _ = recorded(tmp_path, reading((2000 + 4 * 390) * MIB, processes=5), reading(2000 * MIB))
    assert node.copies_low == pytest.approx(4 - 20 / 390)
    assert node.copies_high == pytest.approx(4 + 20 / 390)


def test_an_interval_does_not_reach_below_nothing(tmp_path: Path) -> None:
    node, _ = recorded(tmp_path, reading(1990 * MIB), reading(2000 * MIB))
    assert node.copies_low == 0
    assert node.copies_high > 0


@given(
    used=st.integers(0, 10**12), control=st.integers(0, 10**12), more=st.integers(2, 10**10),
    stand_in=st.integers(0, 10**9), noise=st.integers(0, 10**8),
)  # fmt: skip
def test_the_figure_lies_in_its_interval_and_moves_with_what_is_used(
    used: int, control: int, more: int, stand_in: int, noise: int
) -> None:
    found = Copies.of(used, control, stand_in + more, stand_in, noise)
    if more <= noise:
        assert found is None
        return
    assert found is not None
    assert found.low <= max(found.value, 0.0) <= max(found.high, 0.0)
    one_more = Copies.of(used + more, control, stand_in + more, stand_in, noise)
    assert one_more is not None
    assert one_more.value == pytest.approx(found.value + 1)


def test_duplicate_bytes_are_those_beyond_one_copy(tmp_path: Path) -> None:
    node, _ = recorded(tmp_path, reading((2000 + 4 * 390) * MIB), reading(2000 * MIB))
    assert node.duplicate_bytes == 3 * SIZE
    half, _ = recorded(tmp_path, reading((2000 + 195) * MIB), reading(2000 * MIB))
    assert half.duplicate_bytes == 0


def test_one_copy_is_as_large_as_the_store_holds_it(tmp_path: Path) -> None:
    """A list of objects shrinks when it is packed: the dataset's own 400 MiB are not there any more."""
    reports = [report(0, stored_bytes=110 * MIB), report(1, stored_bytes=110 * MIB)]
    node, _ = recorded(tmp_path, reading(2100 * MIB), reading(2000 * MIB), reports)
    assert node.dataset_bytes == 110 * MIB
    assert node.copies == pytest.approx(1.0)


# No figure


def test_a_dataset_within_the_noise_has_no_copies_and_the_figures_say_why(tmp_path: Path) -> None:
    node, reasons = recorded(
        tmp_path, reading(2000 * MIB), reading(1990 * MIB), flags={"dataset_bytes": 25 * MIB}
    )
    assert (node.copies, node.copies_low, node.copies_high, node.duplicate_bytes) == (None,) * 4
    assert reasons == {
        "copies": "the dataset holds 25.0 MiB in memory, its stand-in 10.0 MiB: the difference is not clear "
        "of the 20 MiB by which a run differs from itself"
    }


@pytest.mark.parametrize(
    ("hold", "control", "given", "why"),
    [
        (None, reading(1), {"end": END}, "the ranks were never held to read their memory"),
        (None, reading(1), {}, "the monitor was ended before it read the memory of the ranks"),
        (reading(None, reasons={"anon": "no split", "file": "no map"}), reading(1), {}, "no split, no map"),
        (reading(1), None, {"why": "the control run failed: killed"}, "the control run failed: killed"),
        (reading(1), None, {}, "the control run gave no reading"),
        (reading(1), reading(None), {}, "the control run gave no reading"),
        (
            reading(1), reading(1), {"flags": {"dataset_bytes": None}},
            "the dataset's size in memory is not known",
        ),
    ],
)  # fmt: skip
def test_an_empty_cell_has_its_reason(
    hold: Any, control: Any, given: dict[str, Any], why: str, tmp_path: Path
) -> None:
    node, reasons = recorded(tmp_path, hold, control, **given)
    assert node.copies is None
    assert reasons == {"copies": why}


def test_processes_that_could_not_be_read_are_in_the_row(tmp_path: Path) -> None:
    node, _ = recorded(tmp_path, reading(3000 * MIB, processes=7, unreadable=2), reading(2000 * MIB))
    assert (node.processes, node.unreadable) == (7, 2)


# Beside the copies


def test_what_is_in_flight_is_what_all_workers_may_hold(tmp_path: Path) -> None:
    """Four ranks, three workers, two batches each of 5 MiB at the most."""
    reports = [report(rank, largest_batch_bytes=size * MIB) for rank, size in enumerate([5, 4, 5, 1])]
    node, _ = recorded(tmp_path, reading(1), reading(1), reports, flags={"workers": 3, "prefetch_factor": 2})
    assert node.inflight_bytes == 4 * 3 * 2 * 5 * MIB


def test_without_workers_nothing_is_in_flight(tmp_path: Path) -> None:
    assert recorded(tmp_path, reading(1), reading(1), [report(0)])[0].inflight_bytes == 0


def test_without_a_report_nobody_knows_what_is_in_flight(tmp_path: Path) -> None:
    assert recorded(tmp_path, reading(1), reading(1), [], flags={"workers": 3})[0].inflight_bytes is None


@pytest.mark.parametrize(
    ("mine", "controls", "retained"),
    [(90, 20, 70), (20, 90, 0), (90, None, 90), (None, 20, None)],
)
def test_retained_bytes_are_those_beyond_the_controls(
    mine: int | None, controls: int | None, retained: int | None, tmp_path: Path
) -> None:
    node, _ = recorded(
        tmp_path, reading(3000 * MIB, retained_bytes=mine), reading(2000 * MIB, retained_bytes=controls)
    )
    assert node.retained_bytes == retained


def test_what_the_monitor_saw_is_in_the_row(tmp_path: Path) -> None:
    node, _ = recorded(
        tmp_path, reading(3000 * MIB, file_resident_bytes=77), reading(2000 * MIB), end=END, warm_ratio=0.5
    )
    assert (node.pss_peak_bytes, node.monitor_cpu_s, node.file_resident_bytes) == (7000, 0.25, 77)
    assert (node.page_cache_warm_ratio, node.used_bytes, node.control_bytes) == (0.5, 3000 * MIB, 2000 * MIB)

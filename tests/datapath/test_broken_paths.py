"""Every fault that a data path can have is found, by its name and at its first place; the clean twins pass.

36 samples, three ranks, batches of four. Unshuffled, rank 2 of the strided path gets 2 5 8 11, 14 17 20 23,
26 29 32 35, and of the contiguous one 24 to 27, 28 to 31, 32 to 35. A fault sits at step 1, place 2 of rank 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import command
from ranks import Ran, run

USERS = str(Path(__file__).with_name("users_paths.py"))
HERE = (2, 1, 2)

FOUND: dict[str, dict[str, tuple[int | None, ...]]] = {
    "Skips": {"missing": (None, None, None), "order": HERE},
    "LeavesAHole": {"missing": (None, None, None), "order": HERE},
    "Swaps": {"order": HERE},
    "MixesContent": {"content": HERE},
    "RepeatsAShare": {"missing": (None, None, None), "duplicated": (2, 0, 0)},
    "LiesInLen": {"length": (2, None, None)},
    "EndsEarly": {"missing": (None, None, None), "unequal-steps": (2, 2, None)},
    "LeavesTheDataset": {"foreign": HERE, "missing": (None, None, None), "order": HERE},
}
"""The findings of each fault, and for each its rank, step and place."""

SAID = {
    "StridedSkips": "rank 2, step 1, place 2: sample 23 came, sample 20 was due",
    "ContiguousSkips": "rank 2, step 1, place 2: sample 31 came, sample 30 was due",
    "StridedLeavesAHole": "sample 20 reached no rank; 1 of 36 are missing",
    "ContiguousLeavesAHole": "sample 30 reached no rank; 1 of 36 are missing",
    "StridedSwaps": "rank 2, step 1, place 2: sample 26 came, sample 20 was due (strided layout); 2 places",
    "ContiguousSwaps": "rank 2, step 1, place 2: sample 32 came, sample 30 was due (blocks layout); 2 places",
    "StridedMixesContent": "rank 2, step 1, place 2: came as sample 20, but its content is sample 19's",
    "ContiguousMixesContent": "rank 2, step 1, place 2: came as sample 30, but its content is sample 29's",
    "StridedRepeatsAShare": "sample 0 was already delivered to rank 0, step 0, place 0; 12 repeats in all",
    "ContiguousRepeatsAShare": "sample 0 was already delivered to rank 0, step 0, place 0; 12 repeats in all",
    "StridedLiesInLen": "len(loader) says 4, 3 steps came on rank 2",
    "ContiguousLiesInLen": "len(loader) says 4, 3 steps came on rank 2",
    "StridedEndsEarly": "rank 2 took 2 steps, rank 0 took 3",
    "ContiguousEndsEarly": "rank 2 took 2 steps, rank 0 took 3",
    "StridedLeavesTheDataset": "rank 2, step 1, place 2: index 36 is not one of the 36 samples",
    "ContiguousLeavesTheDataset": "rank 2, step 1, place 2: index 36 is not one of the 36 samples",
}

SMALL = {"dataset": "synthetic:n=36:7", "nproc": 3, "batch_size": 4}
NOT_SEEN_IN_A_SHUFFLE = {"order"}


def deliver(path: str, folder: Path, **flags: Any) -> Ran:
    return run(folder, sampler=f"{USERS}:{path}", **SMALL | flags)


def found(ran: Ran) -> dict[str, tuple[int | None, ...]]:
    return {f.name: (f.rank, f.step, f.position) for audit in ran.audits for f in audit.findings}


def said(ran: Ran) -> str:
    return "\n".join(f.sentence for audit in ran.audits for f in audit.findings)


@pytest.mark.parametrize("layout", ["Strided", "Contiguous"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("samples", [36, 37])
def test_a_clean_path_of_a_user_has_no_finding(
    layout: str, shuffle: bool, samples: int, tmp_path: Path
) -> None:
    ran = deliver(layout, tmp_path, shuffle=shuffle, dataset=f"synthetic:n={samples}:7")
    assert ran.findings == []
    assert ran.audits[0].missing == 0


@pytest.mark.parametrize("fault", FOUND)
@pytest.mark.parametrize("layout", ["Strided", "Contiguous"])
def test_a_fault_is_named_with_its_rank_and_first_place(layout: str, fault: str, tmp_path: Path) -> None:
    ran = deliver(layout + fault, tmp_path, shuffle=False)
    places = found(ran)
    if (layout, fault) == ("Strided", "RepeatsAShare"):
        assert places.pop("order") == (2, 0, 0)  # a contiguous part may start where it likes
    assert places == FOUND[fault]
    assert SAID[layout + fault] in said(ran)


@pytest.mark.parametrize("fault", sorted(set(FOUND) - {"Swaps"}))
def test_a_fault_is_found_in_a_shuffled_epoch_too(fault: str, tmp_path: Path) -> None:
    ran = deliver(f"Strided{fault}", tmp_path)
    assert set(found(ran)) == set(FOUND[fault]) - NOT_SEEN_IN_A_SHUFFLE


def test_ranks_that_shuffle_with_seeds_of_their_own_leave_samples_out(tmp_path: Path) -> None:
    """As in accelerate#3398."""
    orders = [torch.randperm(36, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    seen = {index for rank, order in enumerate(orders) for index in order[rank::3].tolist()}
    ran = deliver("StridedSeedsItself", tmp_path)
    (audit,) = ran.audits
    assert (audit.distinct, audit.missing) == (len(seen), 36 - len(seen))
    assert set(found(ran)) == {"missing", "duplicated"}
    assert f"{36 - len(seen)} of 36 are missing" in said(ran)


def test_a_fault_of_the_second_epoch_alone_is_found_there(tmp_path: Path) -> None:
    ran = deliver("StridedForgetsItsSecondEpoch", tmp_path, epochs=2, shuffle=False)
    first, second = ran.audits
    assert first.findings == ()
    assert [(f.name, f.epoch) for f in second.findings if f.name == "missing"] == [("missing", 1)]


def test_padding_is_no_excuse_for_repeats_of_another_kind(tmp_path: Path) -> None:
    """37 samples leave room for eleven repeats; a share that comes twice makes thirteen."""
    ran = deliver("StridedRepeatsAShare", tmp_path, dataset="synthetic:n=37:7", shuffle=False)
    assert {"missing", "duplicated"} <= set(found(ran))


def profiled(path: str, results: Path) -> command.Ended:
    return command.profile(
        "--sampler", f"{USERS}:{path}", "--dataset", "synthetic:n=36:7", "--nproc", 3, "--batch-size", 4,
        "--no-shuffle", "--warmup", 0, "--start-method", "forkserver", results=results,
    )  # fmt: skip


@pytest.mark.parametrize("layout", [pytest.param("Strided", marks=pytest.mark.slow), "Contiguous"])
def test_the_command_ends_with_0_for_a_clean_path(layout: str, tmp_path: Path) -> None:
    ended = profiled(layout, tmp_path)
    assert ended.row["status"] == "ok"
    assert ended.row["missing"] == ended.row["duplicates"] == 0
    assert "All 36 samples arrived, none twice." in ended.said


@pytest.mark.parametrize(
    "path",
    [
        "ContiguousSwaps",
        pytest.param("StridedMixesContent", marks=pytest.mark.slow),
        pytest.param("ContiguousRepeatsAShare", marks=pytest.mark.slow),
    ],
)
def test_the_command_ends_with_3_and_says_where_the_fault_is(path: str, tmp_path: Path) -> None:
    ended = profiled(path, tmp_path)
    assert ended.code == 3, ended.stderr
    assert ended.object["status"] == "audit"
    assert SAID[path] in ended.said
    assert "Traceback" not in ended.stderr

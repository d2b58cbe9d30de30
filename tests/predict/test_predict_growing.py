"""The truth lies within the bounds, however small the dataset that was measured is beside that of the job."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from shardlab.predicting.model import Model, Reading, check_of, model_of
from shardlab.predicting.node import Node

MIB = 1 << 20
GIB = 1 << 30
BASE, RANK, WORKER = 310 * MIB, 300 * MIB, 17 * MIB

COPIES = {
    "a copy in each rank": (0.0, 1.0, 0.0, 0.0),
    "one copy": (1.0, 0.0, 0.0, 0.0),
    "one copy, two while it is made": (1.0, 0.0, 0.0, 2.0),
    "one copy, and one in each rank": (1.0, 1.0, 0.0, 1.0),
    "a copy in each worker": (0.0, 0.0, 1.0, 0.0),
    "a copy in each rank and worker": (0.0, 1.0, 1.0, 0.0),
}
"""Copies once, in each rank, in each worker, and once while the ranks build."""


def held(node: Node, copies: tuple[float, float, float, float]) -> float:
    once, by_rank, by_worker, _ = copies
    grows = once + by_rank * node.ranks + by_worker * node.workers
    return BASE + RANK * node.ranks + WORKER * node.workers + grows * node.data_bytes


def built(node: Node, copies: tuple[float, float, float, float]) -> float:
    return BASE + RANK * node.ranks + (copies[3] + copies[1] * node.ranks) * node.data_bytes


def measured(copies: tuple[float, float, float, float], size: int, seed: int) -> list[Reading]:
    """Small runs and their controls, off by half of what a reading may be off."""
    rng = np.random.default_rng(seed)
    readings = []
    for (ranks, workers), data in product([(1, 1), (2, 2), (1, 2), (2, 4)], (size, MIB)):
        node = Node(ranks, workers, data_bytes=data)
        off, peak_off = rng.normal(0, MIB * node.processes, 2), rng.normal(0, 8 * MIB, 2)
        value = held(node, copies) + off[0]
        if data == MIB:
            readings.append(Reading(node, value))
        else:
            building = built(node, copies) + off[1] + peak_off[0]
            readings.append(Reading(node, value, building, max(value, held(node, copies) + peak_off[1])))
    return readings


def grown(size: int, copies: tuple[float, float, float, float], seed: int) -> Model:
    return model_of(measured(copies, size, seed), objects=False)


JOB = Node(8, 16, data_bytes=100 * GIB)


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("size", [16, 32, 64, 128, 256, 512])
def test_the_truth_lies_within_the_bounds(name: str, size: int) -> None:
    copies = COPIES[name]
    truth = max(held(JOB, copies), built(JOB, copies))
    for seed in range(5):
        needs = grown(size * MIB, copies, seed).forecast(JOB).needs
        assert needs.low <= truth <= needs.high, (seed, needs, truth)


def test_what_the_readings_do_not_show_is_in_the_upper_bound() -> None:
    """Seven processes stray by more than 16 MiB: nobody can say then that a dataset of 100 GiB costs nothing."""
    needs = grown(16 * MIB, (0.0, 0.0, 0.0, 0.0), 0).forecast(JOB).needs
    assert needs.value < 20 * GIB
    assert needs.high > 100 * GIB


def test_a_larger_dataset_is_known_better() -> None:
    widths = []
    for size in (64, 128, 256, 512):
        needs = grown(size * MIB, COPIES["a copy in each rank"], 1).forecast(JOB).needs
        widths.append((needs.high - needs.low) / needs.value)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.3


def mapped_readings() -> list[Reading]:
    """A file that is mapped: written from a copy in the first rank, then one of its pages each."""
    copies = (1.0, 0.0, 0.0, 2.0)
    nodes = [Node(n, data_bytes=d, page_cache_bytes=d) for n, d in product((1, 2, 3), (400 * MIB, MIB))]
    return [
        Reading(node, held(node, copies), built(node, copies), held(node, copies))
        if node.data_bytes > MIB
        else Reading(node, held(node, copies))
        for node in nodes
    ]


def test_pages_of_a_file_are_no_need() -> None:
    """100 GiB in files on disk: the node needs what its processes need. Made by a rank, one copy has to be there."""
    model = model_of(mapped_readings(), objects=False)
    on_disk = Node(8, data_bytes=100 * GIB, page_cache_bytes=100 * GIB, in_files=True)
    needs = model.forecast(on_disk).needs
    assert needs.value == pytest.approx(BASE + 8 * RANK, rel=1e-6)
    assert needs.high < 4 * GIB
    made = model.forecast(replace(on_disk, in_files=False))
    assert made.phase == "building"
    assert made.needs.value == pytest.approx(BASE + 8 * RANK + 100 * GIB, rel=1e-6)
    assert made.data_bytes == pytest.approx(100 * GIB, rel=1e-6)
    in_memory = model.forecast(replace(on_disk, in_files=False, page_cache_bytes=0.0))
    assert in_memory.needs.value == pytest.approx(BASE + 8 * RANK + 200 * GIB, rel=1e-6)


def test_the_check_counts_the_pages_that_were_measured() -> None:
    check = check_of(mapped_readings(), objects=False)
    assert check.error_ratio == pytest.approx(0.0, abs=1e-6)


def test_without_a_size_ranks_are_foretold_with_their_data_in_them() -> None:
    """Runs alone: three ranks of 300 MiB, with 90 MiB of data each that nobody could size."""
    runs = [Reading(Node(n), BASE + n * (RANK + 90 * MIB), BASE, BASE + n * (RANK + 90 * MIB)) for n in (1, 2, 3)]
    needs = model_of(runs, objects=False).forecast(Node(8)).needs
    assert needs.value == pytest.approx(BASE + 8 * (RANK + 90 * MIB), rel=1e-6)
    assert needs.low < needs.value < needs.high

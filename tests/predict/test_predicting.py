"""The model finds what was planted, obeys the laws of its own form, and says what hand-worked figures say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from shardlab.config import RunConfig
from shardlab.predicting import sentences
from shardlab.predicting.advice import Change, changes, least_of, verdict_of
from shardlab.predicting.fit import Fit, fit
from shardlab.predicting.model import Forecast, Model, Reading, check_of, model_of, small_runs
from shardlab.predicting.node import Data, Node, node_of, shm_bytes
from shardlab.predicting.parts import PARTS, Interval, Peak
from shardlab.predicting.subsets import Term

MIB = 1 << 20
GIB = 1 << 30
BASE, RANK, WORKER = 310 * MIB, 300 * MIB, 17 * MIB


def nodes() -> Iterator[Node]:
    """Small nodes, each with a dataset of 200 MiB and with hardly any."""
    for ranks, workers, data in product((1, 2), (1, 2), (200 * MIB, 3 * MIB)):
        yield Node(ranks, ranks * workers, ranks * workers * 5.0 * MIB, data_bytes=data)
    yield Node(1, 1, 33.0 * MIB, data_bytes=200 * MIB)
    yield Node(1, 1, 33.0 * MIB, data_bytes=3 * MIB)


def taken(node: Node) -> float:
    """What a node of the planted kind takes: a copy in each rank and a shared one, queues three quarters full."""
    return (
        BASE + RANK * node.ranks + WORKER * node.workers + 0.75 * node.waiting_bytes
        + node.data_bytes * (1 + node.ranks)
    )  # fmt: skip


@pytest.fixture(scope="module")
def planted() -> Fit:
    return fit([Peak(node, taken(node)) for node in nodes()], objects=False)


def test_planted_parts_are_found(planted: Fit) -> None:
    found = dict(zip(PARTS, planted.coefficients.tolist(), strict=True))
    expected = {
        "base": BASE, "rank": RANK, "worker": WORKER, "waiting": 0.75,
        "data once": 1.0, "data per rank": 1.0, "data per worker": 0.0,
    }  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    big = Node(8, 64, 3 * GIB, data_bytes=400 * GIB)
    assert planted.predict(big).value == pytest.approx(taken(big), rel=1e-6)


def test_noise_below_the_noise_known_of_does_not_become_a_part(planted: Fit) -> None:
    rng = np.random.default_rng(5)
    peaks = [Peak(node, taken(node) + rng.normal(0, node.processes * MIB)) for node in nodes()]
    found = fit(peaks, objects=False)
    big = Node(8, 16, data_bytes=GIB)
    value, low, high = found.predict(big)
    assert found.coefficients[PARTS.index("data per worker")] == 0
    assert low <= taken(big) <= high
    assert value == pytest.approx(taken(big), rel=0.05)


def test_more_ranks_workers_or_data_never_need_less(planted: Fit) -> None:
    node = Node(3, 6, 50.0 * MIB, data_bytes=100 * MIB)
    for more in (replace(node, ranks=4), replace(node, workers=7), replace(node, data_bytes=101 * MIB)):
        assert planted.predict(more).value > planted.predict(node).value


def test_growing_the_dataset_grows_its_parts_alone(planted: Fit) -> None:
    small, large = (planted.parts(Node(2, 4, 9.0 * MIB, data_bytes=size)) for size in (100 * MIB, 700 * MIB))
    for part in PARTS:
        factor = 7 if part.startswith("data") else 1
        assert large[part] == pytest.approx(factor * small[part])


def test_forked_workers_copy_the_objects_that_they_touch() -> None:
    """A worker that reads one of two samples touches 3 of 4 pages with two objects each, and so on."""
    part_touched = {1: 1.0, 2: 0.75, 4: 0.4375}
    peaks = [
        Peak(node, BASE + RANK * ranks + WORKER * count + size * (ranks + part_touched[count] * count))
        for ranks, each, size in product((1, 2), (1, 2), (300 * MIB, MIB))
        for count in [ranks * each]
        for node in [Node(ranks, count, data_bytes=size, share=1 / count, forked_workers=True)]
    ]
    found = fit(peaks, objects=True)
    assert found.objects_per_page == 2
    needs = found.predict(Node(4, 8, data_bytes=GIB, share=1 / 8, forked_workers=True))
    assert needs.value == pytest.approx(BASE + 4 * RANK + 8 * WORKER + GIB * (4 + 8 * (1 - (7 / 8) ** 2)), rel=1e-3)


def test_the_fuller_phase_is_foretold() -> None:
    def reading(ranks: int, data: int) -> Reading:
        node, held = Node(ranks, data_bytes=data), BASE + RANK * ranks + ranks * data
        return Reading(node, held, BASE + RANK * ranks + 2 * data, held) if data > MIB else Reading(node, held)

    model = model_of([reading(n, d) for n in (1, 2, 3) for d in (200 * MIB, MIB)], objects=False)
    one, many = (model.forecast(Node(ranks, data_bytes=GIB)) for ranks in (1, 5))
    assert (one.phase, many.phase) == ("building", "feeding")
    assert one.needs.value == pytest.approx(BASE + RANK + 2 * GIB, rel=1e-6)
    assert many.needs.value == pytest.approx(BASE + 5 * RANK + 5 * GIB, rel=1e-6)


def test_the_check_leaves_out_the_largest_run_and_its_control() -> None:
    largest = Node(2, 4, 20.0 * MIB, data_bytes=200 * MIB)
    readings = [
        Reading(node, taken(replace(node, waiting_bytes=0)), BASE, taken(node))
        if node.data_bytes > 100 * MIB
        else Reading(node, taken(replace(node, waiting_bytes=0)))
        for node in nodes()
    ]
    spoilt = [
        each._replace(feeding_bytes=1.1 * taken(largest)) if each.node == largest else each for each in readings
    ]
    check = check_of(spoilt, objects=False)
    assert check.node == largest
    assert check.measured_bytes == pytest.approx(1.1 * taken(largest))
    assert check.error_ratio == pytest.approx(1 / 1.1 - 1, abs=1e-6)


def test_what_a_node_holds() -> None:
    data = Data(1000, samples=100, sample_bytes=10.0)
    config = RunConfig(nproc=4, workers=2, batch_size=5, worker_start_method="fork", store="private")
    node = node_of(config, data)  # 5 steps of each rank: of 2 x 2 batches ahead 2 are being made
    assert (node.ranks, node.workers, node.waiting_bytes, node.share) == (4, 8, 4 * 2 * 50.0, 1 / 8)
    deeper = node_of(replace(config, prefetch_factor=9), data)
    assert deeper.waiting_bytes == 4 * (5 - 2) * 50.0  # there are no more than 5 batches
    assert node.rounds == 1
    assert node_of(replace(config, persistent_workers=True, epochs=4), data).rounds == 5  # and one to warm up
    assert node_of(config, data, nnodes=2).share == 1 / 16
    assert node_of(replace(config, sampler="sharded", store="mmap"), data, nnodes=4).data_bytes == 250
    assert node_of(replace(config, sampler="ring"), data, ring_slots=7).exchanged_bytes == 7 * 4 * 50.0
    assert node_of(replace(config, sampler="accelerate", workers=0), data).exchanged_bytes == 4 * 4 * 50.0
    assert shm_bytes(config, data) == 4 * 5 * 50.0
    assert shm_bytes(replace(config, workers=0), data) == 0
    assert node_of(replace(config, batch_size=1), data).waiting_bytes == 4 * 2 * 10.0


def test_small_runs_are_small_and_have_only_what_the_job_has() -> None:
    big = RunConfig(nproc=8, workers=8, prefetch_factor=4, epochs=90, max_steps=7)
    runs = small_runs(big)
    assert all(run.nproc <= 3 and run.workers <= 2 and run.epochs == 1 and run.max_steps is None for run in runs)
    assert {run.prefetch_factor for run in runs} == {1, 4}
    assert len(runs) == len(set(runs)) == 5
    assert [(run.nproc, run.workers) for run in small_runs(replace(big, workers=0))] == [(1, 0), (2, 0), (3, 0)]
    assert len(small_runs(RunConfig(nproc=1))) == 1
    assert small_runs(replace(big, max_steps=None)) == runs


@pytest.mark.parametrize("nproc", [1, 8])
def test_a_rank_is_told_apart_from_its_only_worker(nproc: int) -> None:
    runs = small_runs(RunConfig(nproc=nproc, workers=1))
    assert {run.workers for run in runs} == {1, 2}
    shapes = [Node(run.nproc, run.nproc * run.workers, data_bytes=size) for run in runs for size in (300 * MIB, MIB)]
    found = fit([Peak(node, BASE + RANK * node.ranks + WORKER * node.workers) for node in shapes], objects=False)
    assert found.coefficients[PARTS.index("worker")] == pytest.approx(WORKER, rel=1e-6)
    more = replace(shapes[0], ranks=1, workers=6)
    assert found.predict(more).value == pytest.approx(BASE + RANK + 6 * WORKER, rel=1e-6)


def test_objects_that_forked_workers_touch_are_read_in_part_too() -> None:
    config = RunConfig(nproc=8, workers=8, batch_size=10, worker_start_method="fork", store="private")
    data = Data(1000, samples=8000, sample_bytes=1.0, objects=True)
    *_, short = small_runs(config, data)
    assert (short.nproc, short.workers, short.max_steps) == (1, 2, 100)
    node = node_of(short, data)  # of 800 steps 100, and 4 batches that are read ahead, by two workers
    assert node.share == pytest.approx(104 / 800 / 2)
    assert all(run.max_steps is None for run in small_runs(config, replace(data, objects=False)))
    spawned = replace(config, worker_start_method="spawn")
    assert all(run.max_steps is None for run in small_runs(spawned, data))


def model_of_parts(rank: int, data_per_rank: float) -> Model:
    coefficients = np.array([GIB, rank, GIB, 1.0, 0.0, data_per_rank, 0.0])
    exact = Fit((Term(coefficients),))
    return Model(exact, exact)


def test_the_nearest_change_that_fits_is_found() -> None:
    model, data = model_of_parts(GIB, 1.0), Data(10 * GIB, 10_000, 0.01 * MIB)
    config = RunConfig(nproc=4, workers=2, store="private", worker_start_method="fork")

    def forecast(changed: RunConfig) -> Forecast:
        return model.forecast(node_of(changed, data))

    # 1 + 4 + 8 + 40 GiB; with 3 ranks 1 + 3 + 6 + 30, with one worker each 1 + 4 + 4 + 40
    least = least_of(small_runs(config))
    found = changes(config, forecast, 50 * GIB, least)
    assert [change.flags for change in found] == ["--workers 1", "--nproc 3"]
    assert found[1].needs.value == pytest.approx(40 * GIB, rel=0.01)
    assert changes(config, forecast, GIB, least) == []


def test_no_change_leads_to_where_no_small_run_was() -> None:
    """1 + 8 + 8 x workers + 8 GiB: 17 without workers, 25 with one each, which the runs had."""
    model, data = model_of_parts(GIB, 0.125), Data(8 * GIB, 100_000, 0.01 * MIB)
    config = RunConfig(nproc=8, workers=4, batch_size=1, store="private", worker_start_method="fork")
    least = least_of(small_runs(config))
    assert (least["workers"], least["prefetch_factor"], least["nproc"]) == (1, 2, 1)

    def flags(limit: int) -> list[str]:
        found = changes(config, lambda each: model.forecast(node_of(each, data)), limit, least)
        return [change.flags for change in found]

    assert "--workers 1" in flags(26 * GIB)
    assert not [each for each in flags(24 * GIB) if each.startswith("--workers")]
    assert least_of(small_runs(replace(config, workers=0)))["workers"] == 0


def test_sentences_of_a_job_worked_by_hand() -> None:
    node = Node(8, data_bytes=100 * GIB)
    forecast = Forecast(
        node, Interval(930.0 * GIB, 900.0 * GIB, 960.0 * GIB), "feeding",
        {"base": 2.0 * GIB, "rank": 128.0 * GIB, "worker": 0.0, "waiting": 0.0, "data per rank": 800.0 * GIB},
    )  # fmt: skip
    verdict = sentences.verdict(forecast, 512 * GIB)
    assert verdict == "A node needs 930 GiB (900 to 960) and has 512 GiB: it does not fit."
    assert list(sentences.cause(forecast)) == ["8.0 copies of the dataset are 86% of it."]
    assert sentences.verdict(forecast, 2000 * GIB, 16).startswith("Each of the 16 nodes needs 930 GiB")
    assert "may not fit" in sentences.verdict(forecast, 910 * GIB)
    table = {line.label: line for line in sentences.lines(forecast, 0.0)}
    assert table["the dataset, in a rank"][1:] == (100 * GIB, 8, 800 * GIB)
    assert "a worker" not in table
    other = sentences.other_store("shared", Interval(62.0 * GIB, 60.0 * GIB, 64.0 * GIB), 512 * GIB)
    assert other == "With --store shared it needs 62 GiB (60 to 64) and fits."
    change = Change("--nproc 4", Interval(400.0 * GIB, 390.0 * GIB, 420.0 * GIB))
    assert list(sentences.cures([change], 512 * GIB)) == ["With --nproc 4 it needs 400 GiB (390 to 420) and fits."]


@pytest.mark.parametrize(
    ("limit", "said"), [(960, "fits"), (959, "may not fit"), (900, "may not fit"), (899, "does not fit")]
)
def test_an_interval_and_a_limit(limit: int, said: str) -> None:
    assert verdict_of(Interval(930.0, 900.0, 960.0), limit) == said


def test_shared_memory_is_compared() -> None:
    assert sentences.shared_memory(0.0, GIB, "Batches") is None
    assert "too little" in (sentences.shared_memory(2.0 * GIB, GIB, "Batches") or "")
    assert "which has 4.00 GiB here." in (sentences.shared_memory(2.0 * GIB, 4 * GIB, "Batches") or "")
    assert "not known" in (sentences.shared_memory(2.0 * GIB, None, "Batches") or "")

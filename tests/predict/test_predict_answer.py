"""What the command says and how it ends, for answers with planted figures: nothing is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from command import code_of
from shardlab import predict as command
from shardlab.bar import Bar
from shardlab.config import OutputConfig, RunConfig
from shardlab.dataset import DatasetFacts
from shardlab.errors import UsageError
from shardlab.plan import resolve
from shardlab.predicting import small_runs as running
from shardlab.predicting.answer import Answer, as_object, said, with_shared_store
from shardlab.predicting.fit import Fit
from shardlab.predicting.model import Model, Reading, small_runs
from shardlab.predicting.node import Data, Node, dataset_shm_bytes, shm_bytes
from shardlab.predicting.parts import PARTS
from shardlab.predicting.question import Limit, Question
from shardlab.predicting.room import (
    available_bytes,
    most_copies,
    refuse_epochs_of_one_step,
    refuse_what_is_lost_in_noise,
    refuse_what_is_too_large_here,
    refuse_what_overflows_shm,
)
from shardlab.predicting.small_runs import Evidence
from shardlab.predicting.subsets import Term
from shardlab.world import JOIN_VARIABLES

MIB = 1 << 20
GIB = 1 << 30
JOB = resolve(RunConfig(nproc=4, workers=2, worker_start_method="fork")).config
DATA = Data(10 * GIB, 100_000, 1.0)


def planted(
    limit: Limit, config: RunConfig = JOB, data: Data = DATA, *, iterable: bool = False, no_size: str = ""
) -> Answer:
    """1 GiB and 1 GiB for each rank, and a copy of 10 GiB in each of these: 45 GiB for four."""
    parts = {"base": 1.0 * GIB, "rank": 1.0 * GIB, "data per rank": 1.0}
    exact = Fit((Term(np.array([parts.get(part, 0.0) for part in PARTS])),))
    evidence = Evidence(
        Model(exact, exact), None, data, ("a", "b"), iterable, tuple(small_runs(config)), no_size
    )
    return Answer(config, Question(), evidence, evidence.forecast(config, 1), limit, shm=GIB)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in JOIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("gib", "code"), [(64, 0), (45, 0), (32, 4)])
def test_the_command_ends_with_4_where_it_does_not_fit(
    gib: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "answered", lambda *_: planted(Limit(gib * GIB)))
    assert code_of(command.main, "--json", "--quiet") == code
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdict"] == {64: "fits", 45: "may not fit", 32: "does not fit"}[gib]
    assert printed["limit_bytes"] == gib * GIB


@pytest.mark.usefixtures("alone")
def test_a_shortened_epoch_is_not_what_is_asked_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[RunConfig] = []

    def answered(config: RunConfig, *_: object) -> Answer:
        asked.append(config)
        return planted(Limit(64 * GIB))

    monkeypatch.setattr(command, "answered", answered)
    assert code_of(command.main, "--max-steps", "3", "--quiet") == 0
    assert asked[0].max_steps is None
    assert "--max-steps has no effect here" in " ".join(capsys.readouterr().err.split())


def test_an_answer_as_an_object() -> None:
    found = as_object(planted(Limit(32 * GIB)))
    assert found["needs_bytes"] == 45 * GIB
    assert found["parts_bytes"] == {"base": GIB, "rank": 4 * GIB, "data per rank": 40 * GIB}
    assert (found["phase"], found["run_ids"], found["nproc"]) == ("building", ["a", "b"], 4)
    assert found["check_error_ratio"] is None
    assert found["other_store"] is None
    assert json.loads(json.dumps(found)) == found


def test_what_is_said_of_a_job_that_does_not_fit() -> None:
    first, cause, *others = said(planted(Limit(32 * GIB)))
    assert first.startswith("A node needs 45 GiB (45 to 45) and has 32 GiB: it does not fit.")
    assert cause == "4.0 copies of the dataset are 89% of it."
    text = "\n".join(others)
    assert "With --nproc 2 it needs 23 GiB" in text
    assert "With --workers" not in text
    assert "What --workers 0 needs, these runs do not tell: measure it with python -m shardlab.predict" in text
    assert "What --store shared needs was not measured: python -m shardlab.predict" in text


def test_a_limit_that_was_not_given_is_what_is_left_here() -> None:
    first, *_ = said(planted(Limit(50 * GIB, 64 * GIB)))
    assert first == "A node needs 45 GiB (45 to 45) of 50 GiB available here now (of 64 GiB): it fits."


def test_the_page_cache_is_said_apart() -> None:
    mapped = resolve(replace(JOB, store="mmap", workers=0)).config
    first, *_ = said(planted(Limit(32 * GIB), mapped, replace(DATA, in_files=True)))
    assert first.startswith("A node needs 5.00 GiB (")
    assert first.endswith(") of 32 GiB, and 10 GiB of page cache to run at full speed: it fits.")
    first, *_ = said(planted(Limit(4 * GIB), mapped, replace(DATA, in_files=True)))
    assert first.endswith("), and 10 GiB of page cache to run at full speed, and has 4.00 GiB: it does not fit.")


def test_an_unknown_size_is_said() -> None:
    text = " ".join(said(planted(Limit(32 * GIB), data=Data(0, 100_000, 1.0), no_size="made as it is read")))
    assert "The size of the dataset is not known (made as it is read)" in text
    assert "4 ranks are 80% of it" in text


def test_a_dataset_that_is_moved_to_shared_memory_has_to_fit_there() -> None:
    """Four ranks with 10 GiB each, and 1 GiB of /dev/shm; the memory would do."""
    spawned, moved = replace(JOB, worker_start_method="spawn"), replace(DATA, moved=True)
    here = planted(Limit(64 * GIB, 128 * GIB), spawned, moved)
    first, second, *_ = said(here)
    assert here.verdict == "does not fit"
    assert "40 GiB in all, and there are 1.00 GiB here: it does not fit." in first
    assert second.startswith("As for memory alone: a node needs 45 GiB")
    elsewhere = planted(Limit(64 * GIB), spawned, moved)
    assert elsewhere.verdict == "fits"
    assert "it does not fit where a node of the job has no more" in next(iter(said(elsewhere)))
    assert planted(Limit(64 * GIB, 128 * GIB), JOB, moved).verdict == "fits"
    assert dataset_shm_bytes(spawned, moved) == 40 * GIB
    assert dataset_shm_bytes(spawned, DATA) == dataset_shm_bytes(JOB, moved) == 0
    assert shm_bytes(spawned, moved) == 40 * GIB + 4 * 5 * 32


def test_the_shared_store_is_a_choice_where_a_job_does_not_fit() -> None:
    shared = with_shared_store(planted(Limit(32 * GIB)))
    assert shared is not None and (shared.store, shared.nproc) == ("shared", 4)
    assert with_shared_store(planted(Limit(64 * GIB))) is None
    assert with_shared_store(planted(Limit(32 * GIB), iterable=True)) is None
    assert with_shared_store(planted(Limit(32 * GIB), replace(JOB, store="shared"))) is None
    inherited = resolve(replace(JOB, store="inherited", start_method="fork")).config
    forked = with_shared_store(planted(Limit(2 * GIB), inherited))
    assert forked is not None and forked.start_method == "spawn"


@pytest.mark.parametrize(
    ("flags", "objects", "copies"),
    [
        ({}, False, 3),
        ({"workers": 2}, False, 3),
        ({"workers": 2, "worker_start_method": "spawn"}, False, 6),
        ({"workers": 2}, True, 9),
        ({"workers": 2, "worker_start_method": "spawn"}, True, 9),
        ({"store": "shared"}, False, 2),
        ({"store": "mmap", "workers": 2}, True, 2),
        ({"store": "inherited"}, False, 1),
        ({"store": "inherited"}, True, 4),
        ({"store": "inherited", "workers": 2}, True, 7),
        ({"store": "reader"}, False, 1),
    ],
)
def test_copies_at_the_fullest_moment(flags: dict[str, Any], objects: bool, copies: int) -> None:
    config = replace(RunConfig(nproc=3, store="private", worker_start_method="fork"), **flags)
    assert most_copies(config, objects=objects) == copies
    assert most_copies(replace(config, store="mmap"), objects=objects, in_files=True) == 1


def facts(nbytes: int | None, samples: int = 100_000, *, objects: bool = False) -> DatasetFacts:
    return DatasetFacts(samples, nbytes, {}, objects=objects)


def test_what_would_fill_this_machine_is_refused() -> None:
    """Two ranks with two workers each hold six copies of objects: 1 GiB each is more than 70 % of 8 GiB."""
    runs = small_runs(JOB)
    with pytest.raises(UsageError, match=r"up to 6 copies .*1.00 GiB each, with 8.00 GiB.*--dataset-bytes"):
        refuse_what_is_too_large_here(runs, facts(GIB, objects=True), 8 * GIB)
    refuse_what_is_too_large_here(runs, facts(GIB), 8 * GIB)
    refuse_what_is_too_large_here(runs, facts(GIB, objects=True), 9 * GIB)
    refuse_what_is_too_large_here(runs, facts(None), 8 * GIB)


def test_what_overflows_shared_memory_is_refused_beforehand() -> None:
    """A worker of each of 2 ranks with 3 batches ahead and one in hand: 2 x 4 batches of 10 samples of 1 MB."""
    data = Data(100 * MIB, 100, float(MIB))
    config = RunConfig(nproc=2, workers=1, prefetch_factor=3, batch_size=10)
    refuse_what_overflows_shm(shm_bytes(config, data), 80 * MIB)
    refuse_what_overflows_shm(shm_bytes(config, data), None)
    with pytest.raises(UsageError, match=r"/dev/shm .*80 MiB, with 64 MiB free.*--shm-size"):
        refuse_what_overflows_shm(shm_bytes(config, data), 64 * MIB)


def test_what_is_available_is_read_from_the_kernel(tmp_path: Path) -> None:
    """700 kB are available, swap apart; a group may have 500 kB more, and 40 kB of files that it can drop."""
    proc, group = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    group.mkdir()
    assert available_bytes(proc, group) is None
    (proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 700 kB\nSwapFree: 300 kB\n")
    assert available_bytes(proc, group) == 700 << 10
    (proc / "self/cgroup").write_text("0::/\n")
    (group / "memory.max").write_text(f"{800 << 10}\n")
    (group / "memory.current").write_text(f"{300 << 10}\n")
    (group / "memory.stat").write_text(f"active_file {10 << 10}\ninactive_file {30 << 10}\n")
    assert available_bytes(proc, group) == 540 << 10


def test_a_dataset_lost_in_the_noise_is_not_scaled() -> None:
    """Seven processes stray by 28 MiB; 100 of 1000 samples stand in for it in the control: 31 MiB leave 27.9."""
    with pytest.raises(UsageError, match=r"clear of the 28 MiB .* 7 processes .*a larger --dataset"):
        refuse_what_is_lost_in_noise(facts(31 * MIB, 1000), 7, 100, 100 * GIB)
    refuse_what_is_lost_in_noise(facts(32 * MIB, 1000), 7, 100, 100 * GIB)
    refuse_what_is_lost_in_noise(facts(31 * MIB, 1000), 7, 100, None)


def test_epochs_of_one_step_are_refused() -> None:
    runs = small_runs(resolve(RunConfig(nproc=2, batch_size=50)).config)
    with pytest.raises(UsageError, match=r"at least 2 steps.*--batch-size of at most 25, or a larger dataset"):
        refuse_epochs_of_one_step(runs, 100)
    with pytest.raises(UsageError, match="with 2 x --batch-size 50 of 60"):
        refuse_epochs_of_one_step(runs, 60)  # one rank would have two
    refuse_epochs_of_one_step(runs, 101)
    refuse_epochs_of_one_step(runs, None)
    dropped = [replace(run, tail="drop") for run in runs]
    with pytest.raises(UsageError, match="at least 2 steps"):
        refuse_epochs_of_one_step(dropped, 199)


class Planned:
    """A measurement that takes no time."""

    def __init__(self, config: RunConfig, *_: object, **__: object) -> None:
        self.config = config
        self.ended = self.control = None

    @contextmanager
    def measured(self, _view: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(
            reports=[SimpleNamespace(largest_batch_bytes=32)], run=SimpleNamespace(run_id=str(self.config.nproc))
        )


@pytest.mark.parametrize("size", [None, 100 * MIB])
def test_controls_say_nothing_where_the_size_is_not_known(size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of 300 MiB with 100 MiB of data in each, whose controls have none; asked for 8 of them."""
    config = resolve(RunConfig(nproc=8)).config

    def read(measured: Planned, _run_id: str, data: Data) -> list[Reading]:
        ranks = measured.config.nproc
        run, control = Node(ranks, data_bytes=data.nbytes), Node(ranks)
        taken = (1000 + 400 * ranks) * MIB
        return [Reading(run, taken, taken, taken), Reading(control, (1000 + 300 * ranks) * MIB)]

    monkeypatch.setattr(running, "_sized", lambda *_: DatasetFacts(100_000, size, {}, reason="made as it is read"))
    monkeypatch.setattr(running, "Measurement", Planned)
    monkeypatch.setattr(running, "readings_of", read)
    with Bar(2, quiet=True) as bar:
        found = running.gathered(config, OutputConfig(), bar, None)
    assert found.no_size == ("made as it is read" if size is None else "")
    assert found.forecast(config, 1).needs.value == pytest.approx((1000 + 400 * 8) * MIB, rel=1e-6)
    assert [run.nproc for run in found.runs] == [1, 2, 3]


@pytest.mark.parametrize(("shared", "moved"), [(190, True), (40, False), (None, False)])
def test_tensors_that_ranks_moved_are_seen(shared: int | None, moved: bool) -> None:
    """Two ranks of 100 MiB with spawned workers: 190 MiB more are shared than in the control, or only batches."""
    config = replace(JOB, nproc=2, worker_start_method="spawn")

    def measured(config: RunConfig) -> Any:
        held = [SimpleNamespace(hold=SimpleNamespace(shmem_bytes=each)) for each in (shared and shared * MIB, 0)]
        return SimpleNamespace(ended=held[0], control=held[1], config=config)

    assert running.was_moved(measured(config), Data(100 * MIB, 1000, 1.0)) is moved
    assert not running.was_moved(measured(JOB), Data(100 * MIB, 1000, 1.0))

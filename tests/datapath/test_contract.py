"""What every data path owes its ranks, whichever it is: the laws of its tail, with every store that fits it.

The paths are found, not listed: a new file in the package, and a user's own factory, have to keep the same
laws. What each upstream path gives in figures is in test_counters.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from ranks import Ran, RanksFailed, each_rank, new_job, run_all
from shardlab import plugins
from shardlab.dataset import DatasetSpec, open_dataset, synthetic
from shardlab.engine import rank as engine
from shardlab.engine.job import Job
from shardlab.engine.source import open_store
from shardlab.plan import USER_PATH_STORES, Plan
from shardlab.shards import writer
from shardlab.world import World

WORLD, BATCH, SAMPLES = 3, 4, 37  # three full rounds of twelve, and one sample more
ROUND = WORLD * BATCH
SHAPE = "5x3"
USERS = str(Path(__file__).with_name("users_paths.py"))

PATHS = {name: plugin.facts for name, plugin in plugins.find("datapath").items()} | {
    f"{USERS}:{name}": {"STORES": USER_PATH_STORES, "TAILS": ("pad", "drop", "keep")}
    for name in ("Strided", "Contiguous")
}
STORES = [(path, store) for path, facts in PATHS.items() for store in facts["STORES"]]
TAILS = [(path, tail) for path, facts in PATHS.items() for tail in facts["TAILS"]]
ONE_COPY = [(path, store) for path, store in STORES if store in ("shared", "mmap")]

DATALOADERS = ("distributed", "accelerate", "accelerate-shard", "accelerate-split", "sharded")
"""Paths whose workers are those of a DataLoader, as many as were asked for."""

UPSTREAM_LIES = {("accelerate-split", "keep"): ["length"]}
"""Accelerate counts steps that never come (accelerate#4122); the audit has to say so, and nothing else."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Shards of n synthetic samples, by n."""
    made = {}
    for samples in (*range(1, WORLD + 2), ROUND, SAMPLES):
        made[samples] = str(tmp_path_factory.mktemp("shards") / str(samples))
        source = open_dataset(DatasetSpec(f"synthetic:n={samples}:{SHAPE}"))
        writer.write(source, made[samples], samples_per_shard=10)
    return made


@pytest.fixture
def flags(folders: dict[int, str]) -> Any:
    """The flags of a run of a path over n samples that all paths can read."""

    def make(path: str, samples: int = SAMPLES, **more: Any) -> dict[str, Any]:
        on_disk = "shards" in PATHS[path].get("DATASET_KINDS", ())
        dataset = folders[samples] if on_disk else f"synthetic:n={samples}:{SHAPE}"
        return {"sampler": path, "dataset": dataset, "nproc": WORLD, "batch_size": BATCH, **more}

    return make


def assert_the_tail_is_kept(ran: Ran, path: str, tail: str, samples: int) -> None:
    for audit in ran.audits:
        lies = UPSTREAM_LIES.get((path, tail), []) if samples % ROUND else []
        assert [finding.name for finding in audit.findings] == lies
        assert audit.missing == samples - (audit.distinct or 0)
        if tail == "pad":
            assert audit.missing == 0
            assert audit.delivered - samples < ROUND
        if tail == "drop":
            assert audit.duplicates == 0
            assert audit.missing <= samples % ROUND
        if tail == "keep":
            assert (audit.delivered, audit.distinct) == (samples, samples)
    if tail != "keep":
        assert len(set(ran.by_rank("steps"))) == 1
    assert sorted(set(flat(ran.got()))) == sorted(set(flat(ran.got())) & set(range(samples)))
    if not ran.findings:
        assert ran.by_rank("len_reported") == ran.by_rank("steps")


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return [index for steps in ranks for batch in steps for index in batch]


@pytest.mark.parametrize(("path", "store"), STORES)
def test_every_tail_is_kept_with_every_store_shuffled_or_not_with_workers_or_without(
    path: str, store: str, flags: Any, tmp_path: Path
) -> None:
    many = [
        flags(path, store=store, tail=tail, shuffle=shuffle, workers=workers)
        for tail in PATHS[path]["TAILS"]
        for shuffle, workers in ((False, 0), (True, 1))
    ]
    for ran, asked in zip(run_all(tmp_path, many), many, strict=True):
        assert_the_tail_is_kept(ran, path, asked["tail"], SAMPLES)


@pytest.mark.parametrize(("path", "tail"), TAILS)
def test_the_tail_is_kept_by_datasets_about_as_small_as_the_world(
    path: str, tail: str, flags: Any, tmp_path: Path
) -> None:
    sizes = [ROUND] if (path, tail) == ("accelerate", "drop") else [1, 2, WORLD - 1, WORLD, WORLD + 1, ROUND]
    many = [flags(path, samples, tail=tail, shuffle=s) for samples, s in product(sizes, (False, True))]
    for ran, (samples, _) in zip(run_all(tmp_path, many), product(sizes, (False, True)), strict=True):
        assert_the_tail_is_kept(ran, path, tail, samples)


def test_dispatching_without_a_full_round_is_refused_with_the_cure(flags: Any, tmp_path: Path) -> None:
    for samples in range(1, WORLD + 2):
        with pytest.raises(RanksFailed) as failed:
            run_all(tmp_path / str(samples), [flags("accelerate", samples, tail="drop")])
        assert {kind for kind, _, _ in failed.value.errors.values()} == {"UsageError"}
        text = next(iter(failed.value.errors.values()))[1]
        assert f"needs a full round of 12 samples, but got {samples}" in text
        assert "use --tail pad" in text


@pytest.mark.parametrize("path", PATHS)
def test_a_shuffled_order_follows_from_seed_and_epoch_alone(path: str, flags: Any, tmp_path: Path) -> None:
    first, later, other = run_all(tmp_path, [
        flags(path, epochs=3),
        flags(path, epochs=1, warmup=2, workers=1),  # its third epoch, read by workers
        flags(path, epochs=1, warmup=2, seed=1),
    ])  # fmt: skip
    orders = [first.got(epoch) for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert later.got(2) == orders[2]
    assert other.got(2) != orders[2]
    assert len({audit.order_hash for audit in first.audits}) == 3
    assert later.audits[-1].order_hash == first.audits[2].order_hash


@pytest.mark.parametrize("path", PATHS)
def test_an_order_that_is_not_shuffled_is_the_same_in_every_epoch(
    path: str, flags: Any, tmp_path: Path
) -> None:
    (ran,) = run_all(tmp_path, [flags(path, epochs=2, shuffle=False)])
    assert ran.got(0) == ran.got(1)


@pytest.mark.parametrize("path", [path for path in PATHS if path in ("sharded", "keyed", "ring")])
def test_neighbouring_seeds_share_no_epoch_of_our_own_paths(path: str, flags: Any, tmp_path: Path) -> None:
    runs = run_all(tmp_path, [flags(path, epochs=4, seed=seed) for seed in (0, 1, 2)])
    assert len({audit.order_hash for ran in runs for audit in ran.audits}) == 12


# Resuming


def opened(job: Job, world: World, inherited: Any) -> Any:
    store = open_store(job, world, inherited)
    return store, lambda: engine.open_path(job)(store, Plan.of(job.config, job.facts.samples), world)


def indices_of(batches: Any) -> list[list[int]]:
    return [torch.as_tensor(indices).tolist() for _, indices in batches]


def resume_everywhere(world: World, inherited: Any, job: Job) -> list[dict[str, Any]]:
    """Stop after each number of steps, go on in a new loader from the state as JSON."""
    found = []
    with engine.process_group(job, world):
        _, new_loader = opened(job, world, inherited)
        whole, after = [indices_of(epoch_of(new_loader(), epoch)) for epoch in (1, 2)]
        for steps in range(len(whole) + 1):
            before = new_loader()
            indices_of(epoch_of(before, 0))  # an epoch that is over must not be taken for this one
            before.set_epoch(1)
            batches = iter(before)
            taken = indices_of(next(batches) for _ in range(steps))
            state = json.dumps(before.state_dict())
            del batches
            before.close()
            again = new_loader()
            again.load_state_dict(json.loads(state))
            same = json.dumps(again.state_dict()) == state
            rest = indices_of(again)
            next_epoch = indices_of(epoch_of(again, 2))
            again.close()
            found.append({
                "steps": steps, "same_state": same, "exact": taken + rest == whole, "next": next_epoch == after
            })  # fmt: skip
            dist.barrier()
    return found


def epoch_of(loader: Any, epoch: int) -> Any:
    loader.set_epoch(epoch)
    return loader


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("path", PATHS)
def test_a_new_loader_goes_on_exactly_where_the_state_was_saved(
    path: str, workers: int, flags: Any, tmp_path: Path
) -> None:
    job = new_job(tmp_path / "run", **flags(path, workers=workers, warmup=1))
    for of_rank in each_rank(resume_everywhere, job, job):
        assert len(of_rank) >= SAMPLES // ROUND
        for found in of_rank:
            assert found == {"steps": found["steps"], "same_state": True, "exact": True, "next": True}


# Workers


def children_after(world: World, inherited: Any, job: Job, taken: int | None) -> tuple[int, int]:
    """How many processes a loader has after ``taken`` steps, and how many are left 5 s after its close."""
    with engine.process_group(job, world):
        _, new_loader = opened(job, world, inherited)
        loader = epoch_of(new_loader(), 0)
        batches = iter(loader)
        for number, _ in enumerate(batches, start=1):
            if number == taken:
                break
        busy = len(psutil.Process().children())
        del batches
        loader.close()
        deadline = monotonic() + 5
        while psutil.Process().children() and monotonic() < deadline:
            sleep(0.02)
        return busy, len(psutil.Process().children())


@pytest.mark.parametrize("taken", [1, None])
@pytest.mark.parametrize("path", PATHS)
def test_a_closed_loader_leaves_no_worker(path: str, taken: int | None, flags: Any, tmp_path: Path) -> None:
    job = new_job(tmp_path / "run", **flags(path, workers=2, persistent_workers=True))
    for busy, left in each_rank(children_after, job, job, taken):
        assert left == 0
        assert busy == 2 or path not in DATALOADERS


# One copy that nobody can spoil


def spoil(world: World, inherited: Any, job: Job) -> dict[str, list[int]]:
    """Rank 0 writes zeros over what it is given and what it looks up; which samples are wrong on each rank."""
    layout = synthetic.parse(f"n={SAMPLES}:{SHAPE}")
    right = synthetic.rows(layout, np.arange(SAMPLES))
    with engine.process_group(job, world):
        store, new_loader = opened(job, world, inherited)
        loader = new_loader()
        for batch, indices in epoch_of(loader, 0):
            if world.rank == 0:
                batch.zero_()
            del batch, indices  # views, where the path reuses its buffers
        dist.barrier()
        delivered = [
            int(index)
            for batch, indices in epoch_of(loader, 1)
            for sample, index in zip(batch, indices, strict=True)
            if not torch.equal(sample, right[int(index)])
        ]
        if world.rank == 0:
            for index in range(SAMPLES):
                store.raw[index].zero_()
        dist.barrier()
        looked_up = wrong_in(store.raw, right)
        anew = wrong_in(open_store(job, world, inherited).raw, right)
        loader.close()
    return {"delivered": delivered, "looked_up": looked_up, "opened_anew": anew}


def wrong_in(dataset: Any, right: torch.Tensor) -> list[int]:
    return [index for index in range(len(right)) if not torch.equal(dataset[index], right[index])]


@pytest.mark.parametrize(("path", "store"), ONE_COPY)
def test_a_rank_that_writes_to_its_samples_changes_them_for_itself_alone(
    path: str, store: str, flags: Any, tmp_path: Path
) -> None:
    job = new_job(tmp_path / "run", **flags(path, store=store))
    first, *others = each_rank(spoil, job, job)
    for found in others:
        assert found == {"delivered": [], "looked_up": [], "opened_anew": []}
    assert first["looked_up"] == list(range(SAMPLES))  # it did write
    assert first["opened_anew"] == []

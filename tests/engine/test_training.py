"""Training on real ranks: one curve whoever trains and however samples come, and a run that goes on elsewhere.

What is right is said by a loop of plain PyTorch on the batches that the ledgers say were delivered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from torch.optim import SGD, AdamW

import trainees
from by_hand import outcome
from ranks import Ran, RanksFailed, each_rank, new_job, run, run_all
from shardlab import plugins
from shardlab.dataset._arrays import ArrayDataset
from shardlab.engine import rank as engine
from shardlab.engine.checkpoint import latest, read_place
from shardlab.engine.job import Job
from shardlab.engine.model import Cnn
from shardlab.engine.step import Training
from shardlab.index import ledger
from shardlab.launch.learned import curve, last_learned
from shardlab.shards import writer
from shardlab.trainconfig import TrainConfig
from shardlab.verdict import slow_rank
from shardlab.world import World
from trainees import named

Steps = list[list[int]]
"""The indices of a rank's batches."""

SAMPLERS = ["distributed", "accelerate", "accelerate-shard", "accelerate-split", "keyed", "ring"]
FRAMEWORKS = ["ddp", "accelerate"]
EPOCH = [list(range(first, first + 8)) for first in range(0, 400, 8)]
"""Fifty steps of eight, unshuffled."""


def exact(**given: Any) -> TrainConfig:
    """Curves that can be compared to the last digits."""
    return TrainConfig(**{"dtype": "float64", "dropout": False, "eval_dataset": "none", **given})


def flags(
    nproc: int = 2, batch_size: int = 4, train: TrainConfig | None = None, **given: Any
) -> dict[str, Any]:
    plain = {"sampler": "keyed", "store": "private", "dataset": named("images_400"), "tail": "drop"}
    config = {"nproc": nproc, "batch_size": batch_size, "train": train or exact()}
    return {**plain, "shuffle": False, **config, **given}


@dataclass(frozen=True)
class ByHand:
    losses: list[float]
    model: nn.Module


def by_hand(
    data: ArrayDataset, epochs: Sequence[Sequence[Steps]], accumulation: int = 1, lr: float = 1e-3
) -> ByHand:
    """Train on what the ranks of each epoch got. A rank that is through adds a gradient of zero to the mean."""
    torch.manual_seed(0)
    model = Cnn(1, 8, 8, dropout=False).double()
    optimizer = AdamW(model.parameters(), lr=lr)
    images, labels = data.leaves[0].double() / 255, data.leaves[1]
    losses = []
    for number, ranks in enumerate(epochs):
        optimizer.param_groups[0]["lr"] = lr * 0.7**number
        steps = max(map(len, ranks))
        for first in range(0, steps, accumulation):
            group = range(first, min(first + accumulation, steps))
            optimizer.zero_grad()
            for step in group:
                got = [rank[step] for rank in ranks if step < len(rank)]
                each = [functional.cross_entropy(model(images[batch]), labels[batch]) for batch in got]
                (torch.stack(each).sum() / len(ranks) / len(group)).backward()
                losses.append(fmean(loss.item() for loss in each))
            optimizer.step()
    return ByHand(losses, model)


def epochs_of(ran: Ran) -> list[list[Steps]]:
    return [ran.got(epoch) for epoch in sorted({epoch for epoch, _ in ran.ledgers})]


def flat(ranks: Sequence[Steps]) -> list[int]:
    return [index for steps in ranks for batch in steps for index in batch]


def by_step(ran: Ran) -> dict[tuple[int, int], float]:
    return {(row.epoch, row.step): row.loss for row in curve("", ran.reports)}


def same(losses: Sequence[float]) -> Any:
    """Equal up to the order in which numbers are added."""
    return pytest.approx(losses, rel=1e-9, abs=0)


@pytest.fixture(scope="module")
def truth() -> list[float]:
    """The losses of an unshuffled epoch of fifty steps."""
    return by_hand(trainees.images_400(), [[EPOCH]]).losses


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Folders of shards, by the number of samples."""
    folder = tmp_path_factory.mktemp("shards")
    for samples in (43, 400):
        writer.write(trainees.arrays(samples), folder / str(samples), samples_per_shard=samples // 5)
    return {samples: str(folder / str(samples)) for samples in (43, 400)}


# The same numbers


def test_the_model_that_is_trained_learns(truth: list[float]) -> None:
    assert fmean(truth[-10:]) < 0.9 * fmean(truth[:10])


@pytest.mark.parametrize(
    ("framework", "nproc"),
    [("single", 1), ("ddp", 2), ("accelerate", 2), ("ddp", 4)],
)
def test_whoever_trains_a_global_batch_is_a_global_batch(
    framework: str, nproc: int, truth: list[float], tmp_path: Path
) -> None:
    ran = run(tmp_path, **flags(nproc, 8 // nproc, exact(framework=framework)))
    assert ran.findings == []
    assert len(ran.losses) == 50
    assert ran.losses == same(truth)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_however_samples_come_the_curve_is_the_same(sampler: str, truth: list[float], tmp_path: Path) -> None:
    ran = run(tmp_path, **flags(sampler=sampler))
    assert ran.findings == []
    assert ran.losses == same(truth)


def test_shards_in_their_order_give_the_same_curve(
    shards: dict[int, str], truth: list[float], tmp_path: Path
) -> None:
    ran = run(tmp_path, **flags(1, 8, sampler="sharded", store="mmap", dataset=shards[400]))
    assert ran.losses == same(truth)


@pytest.mark.parametrize("sampler", [*SAMPLERS, "sharded"])
def test_shuffled_epochs_are_those_of_the_ledger_with_a_learning_rate_that_falls(
    sampler: str, shards: dict[int, str], tmp_path: Path
) -> None:
    on_disk = {"store": "mmap", "dataset": shards[400]} if sampler == "sharded" else {}
    ran = run(tmp_path, **flags(sampler=sampler, shuffle=True, epochs=2, max_steps=20, **on_disk))
    assert len({str(epoch) for epoch in epochs_of(ran)}) == 2
    assert ran.losses == same(by_hand(trainees.images_400(), epochs_of(ran)).losses)
    rates = [report.learned.learning_rate for report in ran.reports if report.learned]
    assert rates == pytest.approx([1e-3, 1e-3, 7e-4, 7e-4])


def test_keyed_and_ring_are_one_shuffle(tmp_path: Path) -> None:
    keyed, ring = run_all(tmp_path, [flags(sampler=sampler, shuffle=True) for sampler in ("keyed", "ring")])
    assert keyed.got() == ring.got()
    assert keyed.losses == ring.losses


def test_images_of_one_channel_without_its_axis_are_trained_on(tmp_path: Path) -> None:
    ran = run(tmp_path, **flags(dataset=named("plain_images"), train=TrainConfig(eval_dataset="none")))
    assert len(ran.losses) == 5


@pytest.mark.parametrize(("scaling", "rate"), [("linear", 3e-3), ("sqrt", 3**0.5 * 1e-3)])
def test_the_learning_rate_may_grow_with_the_ranks(scaling: str, rate: float, tmp_path: Path) -> None:
    ran = run(tmp_path, **flags(3, train=exact(lr_scaling=scaling), max_steps=3))
    assert ran.losses == same(by_hand(trainees.images_400(), epochs_of(ran), lr=rate).losses)
    learned = last_learned(ran.reports)
    assert learned is not None
    assert learned.learning_rate == pytest.approx(rate)


# Accumulation


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_accumulated_batches_of_all_ranks_are_one_step(framework: str, tmp_path: Path) -> None:
    """Ten steps are groups of four, four and two; the second epoch shows what the last group did."""
    ran = run(tmp_path, **flags(train=exact(framework=framework, accumulation=4), max_steps=10, epochs=2))
    assert len(ran.losses) == 20
    assert ran.losses == same(by_hand(trainees.images_400(), epochs_of(ran), accumulation=4).losses)


def exchanging(world: World, _inherited: Any, job: Job) -> list[bool]:
    """Whether ranks exchanged gradients, step by step."""
    with engine.process_group(job, world):
        framework = plugins.find("framework")[job.train.framework].load()  # type: ignore[union-attr]
        cpu = torch.device("cpu")
        prepared = framework.open(nn.Linear(4, 10), lambda given: SGD(given, lr=0.1), world, cpu)
        training = Training(prepared, torch.float32, accumulation=4)
        training.begin(10)
        batch = torch.rand(2, 4), torch.tensor([1, 2])
        return [training.step(batch)[1] > 0 for _ in range(10)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_travel_once_for_each_group(framework: str, tmp_path: Path) -> None:
    job = new_job(tmp_path / "run", **flags(train=exact(framework=framework)))
    for steps in each_rank(exchanging, job, job):
        assert [step for step, was in enumerate(steps) if was] == [3, 7, 9]


def ending_early(world: World, _inherited: Any, job: Job) -> tuple[bool, list[torch.Tensor]]:
    """Five batches of an epoch that is said to have ten: whether its end was exchanged, and the weights."""
    with engine.process_group(job, world):
        framework = plugins.find("framework")[job.train.framework].load()  # type: ignore[union-attr]
        torch.manual_seed(3)
        model = nn.Linear(4, 10).double()
        prepared = framework.open(model, lambda given: SGD(given, lr=0.1), world, torch.device("cpu"))
        training = Training(prepared, torch.float64, accumulation=3)
        training.begin(10)
        for inputs, labels in part_of(world.rank):
            training.step((inputs, labels))
        _compute_s, comm_s = training.finish()
        return comm_s > 0, [each.detach().clone() for each in prepared.module.parameters()]


def part_of(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Five batches of two, others on each rank."""
    index = torch.arange(5 * 2 * 4, dtype=torch.float64).view(5, 2, 4) + 100 * rank
    return [(numbers.sin(), torch.tensor([rank, step])) for step, numbers in enumerate(index)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_that_an_early_end_left_are_those_of_all_ranks(framework: str, tmp_path: Path) -> None:
    """Groups of three and two, over the batches of both ranks."""
    torch.manual_seed(3)
    model = nn.Linear(4, 10).double()
    optimizer = SGD(model.parameters(), lr=0.1)
    for group in range(3), range(3, 5):
        pairs = [part_of(rank)[step] for rank in range(2) for step in group]
        inputs, labels = map(torch.cat, zip(*pairs, strict=True))
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    job = new_job(tmp_path / "run", **flags(train=exact(framework=framework)))
    for exchanged, weights in each_rank(ending_early, job, job):
        assert exchanged
        for found, expected in zip(weights, model.parameters(), strict=True):
            assert torch.allclose(found, expected, rtol=0, atol=1e-14)


# Uneven ends


OWN_PATHS = """
from torch.utils.data import default_collate


class Endless:
    def __init__(self, store, plan, world):
        self.dataset, self.world = store.dataset, world

    def __iter__(self):
        for step in range(2 + (self.world.rank > 0)):
            first = 3 * (step * self.world.world_size + self.world.rank)
            indices = [first, first + 1, first + 2]
            yield default_collate([self.dataset[index] for index in indices]), indices

    def set_epoch(self, epoch):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Apart(Endless):
    def __len__(self):
        return 2 + (self.world.rank > 0)
"""


def own_path(folder: Path, name: str) -> str:
    """A data path as a flag has it: batches of three, a batch less on rank 0; ``Endless`` has no length."""
    (folder / "own_paths.py").write_text(OWN_PATHS)
    return f"{folder / 'own_paths.py'}:{name}"


@pytest.mark.parametrize(
    ("sampler", "framework"),
    [
        ("keyed", "ddp"),
        ("keyed", "accelerate"),
        ("ring", "ddp"),
        ("sharded", "ddp"),
        ("accelerate-shard", "accelerate"),
    ],
)
def test_ranks_may_end_apart_and_nobody_is_left_waiting(
    sampler: str, framework: str, shards: dict[int, str], tmp_path: Path
) -> None:
    """A rank that was through early has not taken the last step of the first epoch, and begins the second alike."""
    on_disk = {"store": "mmap", "dataset": shards[43]} if sampler == "sharded" else {}
    given = {"dataset": named("images_43"), "sampler": sampler, **on_disk, "tail": "keep", "epochs": 2}
    ran = run(tmp_path, **flags(4, 5 if on_disk else 4, exact(framework=framework), **given))
    steps = {len(report.learned.losses) for report in ran.reports if report.learned}
    assert len(steps) == 2
    for epoch in epochs_of(ran):
        assert sorted(flat(epoch)) == list(range(43))
    assert ran.losses == same(by_hand(trainees.images_43(), epochs_of(ran)).losses)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ranks_may_get_nothing_at_all(framework: str, tmp_path: Path) -> None:
    given = {"dataset": named("images_2"), "tail": "keep", "epochs": 2}
    ran = run(tmp_path, **flags(3, 4, exact(framework=framework), **given))
    assert [sorted(flat(epoch)) for epoch in epochs_of(ran)] == [[0, 1], [0, 1]]
    assert ran.losses == same(by_hand(trainees.images_2(), epochs_of(ran)).losses)


def test_a_path_of_ones_own_may_give_ranks_different_numbers_of_steps(tmp_path: Path) -> None:
    """Whatever --tail says."""
    given = {"dataset": named("images_43"), "sampler": named("Apart"), "tail": "pad", "epochs": 2}
    ran = run(tmp_path, **flags(4, 3, **given))
    assert [len(steps) for steps in ran.got()] == [2, 3, 3, 3]
    assert ran.losses == same(by_hand(trainees.images_43(), epochs_of(ran)).losses)


@pytest.mark.parametrize("given", [{"accumulation": 2}, {"checkpoint": "kept", "checkpoint_every": 1}])
def test_what_is_done_together_in_certain_steps_is_refused_where_ranks_end_apart(
    given: dict[str, Any], tmp_path: Path
) -> None:
    path = {"dataset": named("images_43"), "sampler": own_path(tmp_path, "Apart"), "tail": "pad"}
    if "checkpoint" in given:
        given = {**given, "checkpoint": str(tmp_path / "kept")}
    with pytest.raises(RanksFailed) as failed:
        run(tmp_path, **flags(4, 3, exact(**given), **path))
    kinds = {(kind, text.partition(",")[0]) for kind, text, _ in failed.value.errors.values()}
    (name,) = (name for name in ("accumulation", "checkpoint-every") if name.replace("-", "_") in given)
    assert kinds == {("UsageError", f"--{name} needs ranks with equally many steps")}


@pytest.mark.parametrize("given", [{"accumulation": 2}, {"checkpoint": "kept", "checkpoint_every": 1}])
def test_what_is_done_together_in_certain_steps_is_refused_where_nobody_knows_their_number(
    given: dict[str, Any], tmp_path: Path
) -> None:
    path = {"dataset": named("images_43"), "sampler": own_path(tmp_path, "Endless"), "tail": "pad"}
    if "checkpoint" in given:
        given = {**given, "checkpoint": str(tmp_path / "kept")}
    with pytest.raises(RanksFailed) as failed:
        run(tmp_path, **flags(2, 3, exact(**given), **path))
    assert len(failed.value.errors) == 2
    for kind, text, _ in failed.value.errors.values():
        assert kind == "UsageError"
        assert "needs ranks with equally many steps, which nobody knows" in text
        assert "Cure: leave it out, or use a dataset that has a length" in text


def test_a_path_without_a_length_trains_each_rank_to_its_end(tmp_path: Path) -> None:
    path = {"dataset": named("images_43"), "sampler": own_path(tmp_path, "Endless"), "tail": "pad"}
    ran = run(tmp_path, **flags(2, 3, **path, epochs=2))
    assert [len(steps) for steps in ran.got()] == [2, 3]
    assert ran.losses == same(by_hand(trainees.images_43(), epochs_of(ran)).losses)


# Evaluation


def right_of(model: nn.Module, data: ArrayDataset) -> tuple[float, float]:
    """(accuracy, loss), all samples at once."""
    model.eval()
    images, labels = data.leaves[0].double() / 255, data.leaves[1]
    with torch.no_grad():
        scores = model(images)
    return (scores.argmax(1) == labels).double().mean().item(), functional.cross_entropy(
        scores, labels
    ).item()


@pytest.mark.parametrize(
    ("samples", "framework", "nproc"),
    [
        (101, "single", 1),
        (101, "ddp", 2),
        (101, "ddp", 3),
        (101, "accelerate", 3),
        (2, "ddp", 3),
        (2, "accelerate", 3),
    ],
)
def test_each_sample_is_evaluated_once(samples: int, framework: str, nproc: int, tmp_path: Path) -> None:
    train = exact(framework=framework, eval_dataset=named(f"images_{samples}"), lr=1e-2)
    ran = run(tmp_path, **flags(nproc, 6 // nproc, train, max_steps=12))
    model = by_hand(trainees.images_400(), epochs_of(ran), lr=1e-2).model
    accuracy, loss = right_of(model, trainees.arrays(samples))
    for report in ran.reports:
        assert report.learned is not None
        assert (report.learned.evaluated, report.learned.accuracy) == (samples, accuracy)
        assert report.learned.eval_loss == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_evaluated_is_what_is_saved(framework: str, tmp_path: Path) -> None:
    """The statistics of a batch norm are other ones on each rank."""
    folder = tmp_path / "kept"
    given = {"model": named("normed"), "eval_dataset": named("images_101"), "checkpoint": str(folder)}
    ran = run(tmp_path, **flags(train=exact(framework=framework, **given), max_steps=7))
    model = trainees.normed().double()
    model.load_state_dict(load_file(latest(folder) / "model.safetensors"))
    accuracy, loss = right_of(model, trainees.images_101())
    learned = last_learned(ran.reports)
    assert learned is not None
    assert (learned.accuracy, learned.evaluated) == (pytest.approx(accuracy), 101)
    assert learned.eval_loss == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "said"),
    [("nonsense", "must name a dataset"), (named("images_0"), "--eval-dataset must have samples")],
)
def test_a_dataset_that_cannot_be_evaluated_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RanksFailed) as failed:
        run(tmp_path, **flags(train=exact(eval_dataset=name), max_steps=1))
    assert failed.value.errors[0][0] == "UsageError"
    assert all(said in text for _, text, _ in failed.value.errors.values())


# Going on


def killed(folder: Path, dies_in: int, **given: Any) -> list[Steps]:
    """Run until rank 0 is killed in that forward pass; what the ranks had been given in the last epoch."""
    with pytest.raises(RanksFailed, match="exit code -9"):
        run(folder, {trainees.DIES_IN: str(dies_in)}, **given)
    files = [file for file in (folder / "run-0").glob("ledger-*") if not file.suffix]
    last = max(int(file.name.split("-")[1]) for file in files)
    kept = [ledger.read(folder / "run-0" / f"ledger-{last}-{rank}") for rank in range(given["nproc"])]
    return [[part.tolist() for part in _parts(each)] for each in kept]


def _parts(kept: ledger.RankLedger) -> list[Any]:
    return [kept.between(step, step + 1).indices for step in range(kept.steps)]


def mortal(folder: Path, **given: Any) -> TrainConfig:
    saved = {"checkpoint": str(folder), "checkpoint_every": 3}
    return exact(model=named("mortal"), **{**saved, **given})


@pytest.mark.parametrize(
    ("seed", "sampler", "other"), [(1, "keyed", "keyed"), (2, "ring", "ring"), (3, "keyed", "ring")]
)
def test_a_killed_run_goes_on_with_other_ranks_and_no_sample_comes_twice(
    seed: int, sampler: str, other: str, tmp_path: Path
) -> None:
    dies_in = random.Random(seed).randrange(5, 58)
    data = {"dataset": named("images_480"), "shuffle": True}
    got = killed(
        tmp_path / "first", dies_in, **flags(train=mortal(tmp_path / "kept"), sampler=sampler, **data)
    )
    place = read_place(latest(tmp_path / "kept"))
    assert place.step == (dies_in - 1) // 3 * 3
    train = mortal(tmp_path / "kept", resume=str(tmp_path / "kept"))
    rest = run(tmp_path / "second", **flags(3, train=train, sampler=other, **data))
    assert rest.findings == []
    before = [steps[: place.step] for steps in got]
    assert sorted(flat(before) + flat(rest.got())) == list(range(480))
    assert min(by_step(rest)) == (0, place.step)


@pytest.mark.parametrize(
    ("sampler", "accumulation"), [("keyed", 4), ("ring", 1), ("distributed", 4), ("accelerate-shard", 1)]
)
def test_a_killed_run_goes_on_as_if_it_had_never_stopped(
    sampler: str, accumulation: int, tmp_path: Path
) -> None:
    dies_in = random.Random(f"{sampler} {accumulation}").randrange(8, 110)
    given = {"dataset": named("images_480"), "shuffle": True, "epochs": 2, "sampler": sampler}
    train = mortal(tmp_path / "kept", accumulation=accumulation)
    whole = run(tmp_path / "whole", **flags(train=exact(accumulation=accumulation), **given))
    killed(tmp_path / "first", dies_in, **flags(train=train, **given))
    train = mortal(tmp_path / "kept", accumulation=accumulation, resume=str(tmp_path / "kept"))
    place = read_place(latest(tmp_path / "kept"))
    rest = run(tmp_path / "second", **flags(train=train, **given))
    assert rest.findings == []
    expected = {at: loss for at, loss in by_step(whole).items() if at >= (place.epoch, place.step)}
    assert 0 < len(expected) < 120
    found = by_step(rest)
    assert found.keys() == expected.keys()
    assert [found[at] for at in expected] == same(list(expected.values()))


@pytest.mark.parametrize("sampler", ["distributed", "keyed"])
def test_the_end_of_an_epoch_is_a_place_for_any_number_of_ranks(sampler: str, tmp_path: Path) -> None:
    train = exact(checkpoint=str(tmp_path / "kept"), lr_scaling="linear")
    first = run(tmp_path / "first", **flags(2, 10, train, sampler=sampler, shuffle=True))
    train = exact(resume=str(tmp_path / "kept"), lr_scaling="linear")
    second = run(tmp_path / "second", **flags(4, 5, train, sampler=sampler, shuffle=True, epochs=2))
    assert second.findings == []
    assert [epoch for epoch, _ in second.ledgers] == [1, 1, 1, 1]
    assert sorted(flat(second.got())) == sorted(flat(first.got())) == list(range(400))
    assert first.got() != second.got()
    learned = last_learned(second.reports)
    assert learned is not None
    assert learned.learning_rate == pytest.approx(4 * 0.7e-3)


def test_distributed_cannot_go_on_in_mid_epoch_on_other_ranks(tmp_path: Path) -> None:
    data = {"dataset": named("images_480"), "sampler": "distributed"}
    killed(tmp_path / "first", 8, **flags(train=mortal(tmp_path / "kept"), **data))
    with pytest.raises(RanksFailed) as failed:
        train = mortal(tmp_path / "kept", resume=str(tmp_path / "kept"))
        run(tmp_path / "second", **flags(3, train=train, **data))
    kinds, texts, _ = zip(*failed.value.errors.values(), strict=True)
    assert set(kinds) == {"UsageError"}
    assert "on as many ranks" in texts[0]
    assert "3 ranks x 4, not 2 x 4" in texts[0]
    assert "Cure: the same numbers, or a checkpoint from the end of an epoch, or --sampler keyed" in texts[0]


def test_a_run_that_is_through_says_how_it_could_go_on(tmp_path: Path) -> None:
    run(tmp_path / "first", **flags(train=exact(checkpoint=str(tmp_path / "kept")), max_steps=2))
    with pytest.raises(RanksFailed, match=r"--epochs must be more than the checkpoint has.*Cure: --epochs 2"):
        run(tmp_path / "second", **flags(train=exact(resume=str(tmp_path / "kept")), max_steps=2))


# Times


@pytest.mark.slow
@pytest.mark.alone
def test_seconds_of_waiting_and_of_computing_are_those_that_were_slept(tmp_path: Path) -> None:
    train = TrainConfig(model=named("sleeper"), eval_dataset=named("rows"))
    given = {"sampler": "distributed", "dataset": named("sleepers")}
    ran = run(tmp_path, {trainees.TOLD: str(tmp_path / "told")}, **flags(1, 4, train, **given))
    (report,) = ran.reports
    row = report.row
    assert row.wait_s == pytest.approx(trainees.told(tmp_path / "told", "dataset", 0), rel=0.05)
    assert row.compute_s == pytest.approx(trainees.told(tmp_path / "told", "model", 0), rel=0.05)
    parts = row.wait_s + (row.compute_s or 0) + (row.comm_s or 0) + row.other_s
    assert 0.95 <= parts / report.wall_s <= 1
    assert report.learned is not None
    assert report.learned.accounted_ratio == pytest.approx(parts / report.wall_s, abs=0.01)


@pytest.mark.slow
@pytest.mark.alone
def test_a_slow_rank_is_found_by_what_the_others_wait_for(tmp_path: Path) -> None:
    train = TrainConfig(model=named("slow_on_rank_1"), eval_dataset="none")
    told = {trainees.TOLD: str(tmp_path / "told")}
    ran = run(tmp_path, told, **flags(2, 4, train, dataset=named("rows"), epochs=3))
    slept = [trainees.told(tmp_path / "told", "model", rank) for rank in range(2)]
    computed = [sum(r.row.compute_s or 0 for r in ran.reports if r.row.rank == rank) for rank in range(2)]
    waited = [sum(r.row.comm_s or 0 for r in ran.reports if r.row.rank == rank) for rank in range(2)]
    assert computed == pytest.approx(slept, rel=0.05)
    assert waited[0] == pytest.approx(slept[1] - slept[0], rel=0.05)
    assert waited[1] < 0.05 * waited[0]
    found = slow_rank(outcome(reports=ran.reports, batch_size=4))
    assert found is not None
    assert (found[0].rank, found[1]) == (1, pytest.approx(slept[1] / slept[0], rel=0.05))

"""A step of training against the same arithmetic by hand, and evaluation against counting."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import default_collate

from shardlab.dataset._arrays import ArrayDataset
from shardlab.engine.step import Training, batches_of_group, evaluate
from shardlab.framework import Prepared, single
from shardlab.world import World

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, 1)
FEATURES, BATCH = 6, 3

Batch = tuple[torch.Tensor, torch.Tensor]


class Counting(SGD):
    """Remembers the gradient of the first parameter at each of its steps."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.seen: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> Any:
        gradient = self.param_groups[0]["params"][0].grad
        self.seen.append(gradient.clone())
        return super().step(closure)


def linear() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(FEATURES, 10).double()


def adamw(parameters: Any) -> Optimizer:
    return AdamW(parameters, lr=0.01)


def prepared(optimizer_of: Any = adamw, model: nn.Module | None = None) -> Prepared:
    return single.open(model or linear(), optimizer_of, ALONE, CPU)


def batches(count: int) -> list[Batch]:
    """Numbers of no particular kind, and labels."""
    numbers = torch.arange(count * BATCH * FEATURES, dtype=torch.float64).view(count, BATCH, FEATURES)
    labels = (torch.arange(count * BATCH) * 7 % 10).view(count, BATCH)
    return list(zip((numbers * 1.7).sin(), labels, strict=True))


def trained(parts: Prepared, given: list[Batch], accumulation: int, known: bool = True) -> Training:
    return trained_on(parts, given, accumulation, len(given) if known else None)


def trained_on(parts: Prepared, given: list[Batch], accumulation: int, said: int | None) -> Training:
    """All batches of an epoch that is said to have so many, and not its end."""
    training = Training(parts, torch.float64, accumulation)
    training.begin(said)
    for batch in given:
        training.step(batch)
    return training


def by_hand(given: list[Batch], accumulation: int) -> nn.Module:
    """One step of the optimiser on each group of batches put together."""
    firsts = range(0, len(given), accumulation)
    return on_groups([given[first : first + accumulation] for first in firsts])


def on_groups(groups: list[list[Batch]]) -> nn.Module:
    model = linear()
    optimizer = adamw(model.parameters())
    for group in groups:
        inputs, labels = map(torch.cat, zip(*group, strict=True))
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


def difference(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5))
@example(10, 4)  # groups of four, four and two
@example(4, 4)
@example(3, 5)
def test_accumulated_batches_are_one_step_on_all_of_them(steps: int, accumulation: int) -> None:
    parts, given = prepared(), batches(steps)
    trained(parts, given, accumulation)
    assert difference(parts.module, by_hand(given, accumulation)) < 1e-12


def test_the_last_group_of_an_epoch_may_be_smaller_and_is_a_mean_of_its_own() -> None:
    parts, given = prepared(Counting), batches(10)
    training = trained(parts, given, 4)
    assert len(parts.plain_optimizer.seen) == 3  # type: ignore[attr-defined]
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    gradients = []
    for group in given[:4], given[4:8], given[8:]:
        each = [
            torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
            for x, y in group
        ]
        for parameter, *found in zip(model.parameters(), *each, strict=True):
            parameter.grad = torch.stack(found).mean(0)
        gradients.append(next(model.parameters()).grad)
        optimizer.step()
    pairs = zip(parts.plain_optimizer.seen, gradients, strict=True)  # type: ignore[attr-defined]
    assert all(torch.allclose(seen, expected, atol=1e-14, rtol=0) for seen, expected in pairs)
    assert training.pending == 0


def test_without_a_known_length_full_groups_alone_are_stepped_on() -> None:
    parts = prepared(Counting)
    training = trained(parts, batches(10), 4, known=False)
    assert len(parts.plain_optimizer.seen) == 2  # type: ignore[attr-defined]
    assert training.pending == 2


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.none() | st.integers(1, 15))
@example(10, 4, None)
@example(6, 4, 12)  # ends in mid-group
@example(9, 4, 10)  # ends in a last group that would have been smaller
def test_an_epoch_that_ends_early_is_stepped_on_to_its_last_batch(
    steps: int, accumulation: int, said: int | None
) -> None:
    said = said if said is None else max(said, steps)
    parts, given = prepared(), batches(steps)
    training = trained_on(parts, given, accumulation, said)
    training.finish()
    assert training.pending == 0
    assert difference(parts.module, by_hand(given, accumulation)) < 1e-12


def test_more_batches_than_were_said_are_full_groups() -> None:
    """Six are said, in groups of four and two; nine more are groups of four, four and one."""
    parts, given = prepared(), batches(15)
    training = trained_on(parts, given, 4, 6)
    assert training.pending == 1
    training.finish()
    bounds = [0, 4, 6, 10, 14, 15]
    groups = [given[first:end] for first, end in pairwise(bounds)]
    assert difference(parts.module, on_groups(groups)) < 1e-12
    assert len(training.losses) == 15


def test_the_end_of_an_epoch_without_pending_batches_changes_nothing() -> None:
    parts = prepared()
    training = trained(parts, batches(4), 2)
    before = [parameter.detach().clone() for parameter in parts.module.parameters()]
    assert training.finish() == (0.0, 0.0)
    pairs = zip(before, parts.module.parameters(), strict=True)
    assert all(torch.equal(old, new) for old, new in pairs)


@given(st.integers(1, 9), st.none() | st.integers(0, 60))
def test_groups_cover_the_batches_that_were_said_and_only_the_last_is_smaller(
    accumulation: int, steps: int | None
) -> None:
    first, sizes = 0, []
    while first < (50 if steps is None else steps):
        sizes.append(batches_of_group(first, accumulation, steps))
        first += sizes[-1]
    assert set(sizes[:-1]) <= {accumulation}
    assert all(1 <= size <= accumulation for size in sizes)
    assert steps is None or sum(sizes) == steps
    for beyond in range(first, first + 3):
        assert batches_of_group(beyond, accumulation, steps) == accumulation


def test_an_epoch_begins_without_what_the_one_before_left() -> None:
    parts, given = prepared(), batches(6)
    training = trained(parts, given, 4, known=False)
    training.begin(2)
    assert training.losses == []
    for batch in given[:2]:
        training.step(batch)
    expected = prepared()
    more = trained(expected, given[:4], 4)
    more.begin(2)
    for batch in given[:2]:
        more.step(batch)
    assert difference(parts.module, expected.module) == 0


def test_a_loss_is_that_of_its_own_batch_before_the_step() -> None:
    given = batches(8)
    training = trained(prepared(), given, 4)
    model = linear()
    with torch.no_grad():
        first = [functional.cross_entropy(model(inputs), labels).item() for inputs, labels in given[:4]]
    assert training.losses[:4] == pytest.approx(first, rel=1e-14)
    assert len(training.losses) == 8
    (repeated,) = trained(prepared(), given[:1], 1).losses
    assert repeated == pytest.approx(first[0], rel=1e-14)


def test_dropout_works_in_training_and_not_in_evaluation() -> None:
    class Noticing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, 10)
            self.modes: list[bool] = []

        def forward(self, x: torch.Tensor) -> Any:
            self.modes.append(self.training)
            return self.linear(x)

    model = Noticing().double()
    parts = prepared(model=model)
    training = trained(parts, batches(1), 1)
    evaluate(parts, ArrayDataset(batches(1)[0]), BATCH, torch.float64, ALONE, default_collate, CPU)
    training.begin(1)
    training.step(batches(1)[0])
    assert model.modes == [True, False, True]


def test_alone_nothing_is_communicated() -> None:
    training = Training(prepared(), torch.float64)
    training.begin(1)
    compute_s, comm_s = training.step(batches(1)[0])
    assert compute_s > 0
    assert comm_s == 0


# Evaluation


def one_hot(samples: int) -> ArrayDataset:
    """Scores that are 1 for class 3 i mod 10 and 0 for all others; the label is 7 i mod 10."""
    index = torch.arange(samples)
    return ArrayDataset((functional.one_hot(index * 3 % 10, 10).double(), index * 7 % 10))


def shares(samples: int, batch_size: int, ranks: int) -> list[tuple[float, float, float]]:
    """(right, loss, samples), as sums, that each rank would add."""
    added: list[tuple[float, float, float]] = []

    def total(figures: torch.Tensor) -> torch.Tensor:
        added.append(tuple(figures.tolist()))  # type: ignore[arg-type]
        return figures.clamp(min=1)

    model = nn.Identity()
    parts = Prepared(model, model, None, SGD([torch.zeros(1)]), total=total)
    for rank in range(ranks):
        world = World(rank, ranks, rank, ranks)
        evaluate(parts, one_hot(samples), batch_size, torch.float64, world, default_collate, CPU)
    return added


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 17), st.integers(1, 5))
@example(101, 4, 3)
@example(2, 4, 3)
def test_every_sample_is_counted_once_by_whatever_ranks(samples: int, batch_size: int, ranks: int) -> None:
    right = sum(3 * index % 10 == 7 * index % 10 for index in range(samples))
    loss = samples * math.log(math.e + 9) - right
    found = [sum(column) for column in zip(*shares(samples, batch_size, ranks), strict=True)]
    assert found[0] == right
    assert found[1] == pytest.approx(loss, rel=1e-12)
    assert found[2] == samples


def test_accuracy_and_loss_are_means_over_the_samples() -> None:
    """Of twenty samples the labels of 0, 5, 10 and 15 are right; a loss is log(e + 9), less 1 where it is right."""
    model = nn.Identity()
    parts = Prepared(model, model, None, SGD([torch.zeros(1)]))
    found = evaluate(parts, one_hot(20), 3, torch.float64, ALONE, default_collate, CPU)
    assert found == (4 / 20, pytest.approx(math.log(math.e + 9) - 4 / 20, rel=1e-12), 20)

"""A SIGKILL at whatever moment leaves nothing behind; ``experiments/kills_at_random.py`` does it a hundred times."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from faults.kills import COMMANDS, Kill, Usual, failures, kill_once, write_shards

BUSY_S = 5.0
"""In which a profile does all that it does but for its control run."""


@pytest.fixture(scope="module")
def usual(good_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Usual:
    return Usual(good_results, write_shards(tmp_path_factory.mktemp("kills") / "whole"))


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_at_a_random_moment_leaves_nothing_behind(seed: int, usual: Usual, tmp_path: Path) -> None:
    draw, kills = random.Random(seed), list[Kill]()
    command = draw.choice(COMMANDS)
    while not kills:  # it may have ended before the moment came
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        kill = kill_once(command, BUSY_S, draw, place, usual)
        kills += [kill] if kill is not None else []
    assert not failures(kills)

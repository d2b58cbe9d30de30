"""Which configurations a command line asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlab import plugins
from shardlab.comparing.matrix import CompareConfig, chosen, key_of, matrix, names_of
from shardlab.config import RunConfig
from shardlab.errors import UsageError


def keys(
    samplers: str = "auto", stores: str = "auto", workers: str = "0", **flags: object
) -> list[tuple[str, str, str]]:
    base = RunConfig(**({"dataset": "synthetic:1MiB:4"} | flags))  # type: ignore[arg-type]
    return [key_of(config) for config in matrix(CompareConfig(samplers, stores, workers), base).configs]


def test_every_sampler_that_fits_the_dataset_with_its_own_store_and_what_people_have_first():
    found = keys()
    assert found[0] == ("distributed", "private", "0")
    assert {sampler for sampler, _, _ in found} == set(plugins.find("datapath")) - {"sharded"}
    assert ("keyed", "shared", "0") in found and ("ring", "shared", "0") in found


def test_sharded_is_one_of_them_for_a_folder_of_shards(tmp_path: Path):
    (tmp_path / "manifest.json").write_text("{}")
    assert ("sharded", "mmap", "0") in keys(dataset=str(tmp_path))


def test_the_matrix_is_all_that_fits_and_says_why_the_rest_does_not():
    base = RunConfig(dataset="synthetic:1MiB:4")
    found = matrix(CompareConfig("distributed,ring", "private,reader", "0,2"), base)
    assert [key_of(config) for config in found.configs] == [
        ("distributed", "private", "0"), ("distributed", "private", "2"),
        ("ring", "private", "0"), ("ring", "private", "2"), ("ring", "reader", "0"), ("ring", "reader", "2"),
    ]  # fmt: skip
    assert len(found.left_out) == 2
    assert all(why.startswith("distributed + reader") and "every rank reads" in why for why in found.left_out)


def test_auto_and_its_own_name_are_one_configuration():
    assert keys("keyed", "auto,shared") == [("keyed", "shared", "0")]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("dustributed", "auto", "0"), "--sampler must name a data path"),
        (("keyed", "shard", "0"), "--stores must name stores"),
        (("keyed", "auto", "two"), "--workers must be numbers"),
        (("keyed", "auto", "-1"), "--workers must be numbers"),
        (("keyed", "auto", ""), "--workers must be numbers"),
        ((" , ", "auto", "0"), "--samplers must name something"),
        (("distributed", "reader", "0"), "no combination"),
        (("sharded", "auto", "0"), "no combination"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(flags: tuple[str, str, str], said: str):
    with pytest.raises(UsageError, match=said):
        keys(*flags)


@pytest.mark.parametrize(
    "wrong", [{"repeats": 0}, {"max_copies": 0.0}, {"min_ratio": -1.0}, {"min_ratio": float("nan")}]
)
def test_impossible_gates_and_repeats_are_refused(wrong: dict[str, float]):
    with pytest.raises(UsageError):
        CompareConfig(**wrong)  # type: ignore[arg-type]


def test_the_baseline_is_the_first_that_the_name_fits():
    configs = matrix(CompareConfig("distributed,keyed", "private,shared", "0,2"), RunConfig()).configs
    assert chosen(None, configs) is configs[0]
    assert key_of(chosen("keyed", configs)) == ("keyed", "private", "0")
    assert key_of(chosen("keyed+shared", configs)) == ("keyed", "shared", "0")
    assert key_of(chosen("keyed + shared + 2", configs)) == ("keyed", "shared", "2")
    assert chosen("keyed+shared+2", configs).workers == 2
    with pytest.raises(UsageError, match=r"keyed\+shared\+2"):
        chosen("ring", configs)


def test_names_are_short_where_that_tells_them_apart():
    files = {("a/p.py:mine", "private", "0"), ("b/p.py:mine", "private", "0"), ("c/q.py:mine", "private", "2")}
    assert sorted(names_of(files).values()) == [
        "a/p.py:mine + private", "b/p.py:mine + private", "q.py:mine + private, 2 workers",
    ]  # fmt: skip


def test_flags_that_change_nothing_are_told():
    notes = matrix(CompareConfig("keyed"), RunConfig(prefetch_factor=4)).notes
    assert any("--prefetch-factor has no effect" in note for note in notes)

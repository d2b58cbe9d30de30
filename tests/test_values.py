"""What a user says and what a user is told: errors, the world, the config, plugins."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab import plugins
from shardlab.config import OutputConfig, RunConfig, changed_flags, compute_seconds, flag, parse
from shardlab.errors import ExitCode, RunFailed, ShardlabError, UsageError
from shardlab.records import Memory, row
from shardlab.world import World, is_joining, without_rendezvous

# Errors


def test_a_usage_error_names_rule_value_choices_and_cure() -> None:
    error = UsageError("--store must fit", "reader", ["private", "shared"], "use shared")
    assert str(error) == "--store must fit, but got 'reader'; choose from private, shared. Cure: use shared"


def test_a_usage_error_without_choices_or_cure_ends_with_the_value() -> None:
    assert str(UsageError("--nproc must be at least 1", 0)) == "--nproc must be at least 1, but got 0"


def test_a_usage_error_crosses_processes_with_its_text_and_exit_code() -> None:
    error = UsageError("the rule", "a value", ["x"], "the cure")
    twice = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert isinstance(twice, UsageError)
    assert str(twice) == str(error)
    assert twice.exit_code == 2


def test_exit_codes_are_those_of_the_shell() -> None:
    assert [code.value for code in ExitCode] == [0, 1, 2, 3, 4, 130]
    assert RunFailed("x").exit_code == 1
    assert issubclass(UsageError, ShardlabError)


# World

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}


def test_the_world_of_torchrun() -> None:
    assert World.from_env(TORCHRUN) == World(5, 8, 1, 4, node=1, nnodes=2)


def test_the_world_of_a_launcher_that_sets_the_three_only() -> None:
    assert World.from_env({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}) == World(1, 2, 1, 2, 0, 1)


def test_the_leader_of_a_node_is_its_local_rank_0() -> None:
    assert World(4, 8, 0, 4, node=1, nnodes=2).is_node_leader
    assert not World(1, 8, 1, 4, node=0, nnodes=2).is_node_leader


@pytest.mark.parametrize(("name", "value"), [("RANK", "8"), ("RANK", "-1"), ("LOCAL_RANK", "4")])
def test_a_rank_outside_its_world_is_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name} must lie in .*{value}"):
        World.from_env({**TORCHRUN, name: value})


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["", "two"])
def test_a_variable_that_is_no_number_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} must be a whole number, but got '{value}'"):
        World.from_env({**TORCHRUN, name: value})


def test_all_three_variables_join_and_none_does_not() -> None:
    assert is_joining({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"})
    assert not is_joining({"PATH": "/bin"})


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        (["RANK"], ["LOCAL_RANK", "WORLD_SIZE"]),
        (["RANK", "WORLD_SIZE"], ["LOCAL_RANK"]),
        (["LOCAL_RANK", "WORLD_SIZE"], ["RANK"]),
    ],
)
def test_some_of_the_three_variables_is_an_error(present: list[str], missing: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        is_joining(dict.fromkeys(present, "0"))
    assert f"only {', '.join(present)}" in str(error.value)
    assert f"also sets {', '.join(missing)};" in str(error.value)


def test_a_child_process_does_not_join_by_accident() -> None:
    kept = {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
    rendezvous = {**TORCHRUN, "MASTER_ADDR": "a", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
    assert without_rendezvous({**kept, **rendezvous}) == kept


# Config


def with_value(field: str, value: Any) -> RunConfig:
    return dataclasses.replace(RunConfig(), **{field: value})


@pytest.mark.parametrize(
    ("field", "least"),
    [
        ("nproc", 1),
        ("batch_size", 1),
        ("workers", 0),
        ("prefetch_factor", 1),
        ("epochs", 1),
        ("warmup", 0),
        ("max_steps", 1),
        ("repeats", 1),
        ("seed", 0),
    ],
)
def test_each_number_has_a_least_value(field: str, least: int) -> None:
    assert getattr(with_value(field, least), field) == least
    with pytest.raises(UsageError) as error:
        with_value(field, least - 1)
    assert str(error.value) == f"--{field.replace('_', '-')} must be at least {least}, but got {least - 1}"


def test_an_unknown_device_is_refused_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"--device .*'gpu'; choose from auto, cpu, cuda"):
        RunConfig(device="gpu")


@pytest.mark.parametrize(
    ("text", "seconds"), [("none", 0.0), ("0ms", 0.0), ("5ms", 0.005), ("2.5ms", 0.0025), ("cnn", None)]
)
def test_compute_is_a_pause_or_a_model(text: str, seconds: float | None) -> None:
    assert compute_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5s", "-5ms", "ms", "CNN", "5ms "])
def test_an_unknown_compute_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(UsageError, match=r"--compute .*choose from none, 5ms \(any number\), cnn"):
        RunConfig(compute=text)


def test_changed_flags_are_those_that_differ_from_their_default() -> None:
    assert changed_flags(RunConfig()) == set()
    assert changed_flags(RunConfig(nproc=4, tail="drop", epochs=1)) == {"nproc", "tail"}


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().nproc = 3  # type: ignore[misc]


def test_a_flag_is_its_field_with_dashes() -> None:
    assert flag("batch_size") == "--batch-size"


def test_a_command_line_becomes_values() -> None:
    run, output = parse("", ["--nproc", "4", "--no-shuffle", "--tail", "keep", "--json"], "profile")
    assert run == RunConfig(nproc=4, shuffle=False, tail="keep")
    assert output == OutputConfig(json=True)


@pytest.mark.parametrize("spelling", ["--nproc", "--nproc-per-node", "--num-processes"])
def test_the_number_of_ranks_has_the_spellings_of_other_launchers(spelling: str) -> None:
    assert parse("", [spelling, "3"], "profile")[0].nproc == 3


@pytest.mark.parametrize("argv", [["--nproc", "many"], ["--tail", "cut"], ["--no-such-flag"]])
def test_a_wrong_command_line_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse("", argv, "profile")
    assert end.value.code == 2
    assert capsys.readouterr().out == ""


# Records

FIGURES = st.none() | st.integers(0, 2**50)
MEMORIES = st.builds(Memory, **dict.fromkeys((f.name for f in dataclasses.fields(Memory)), FIGURES))


@given(MEMORIES, MEMORIES, MEMORIES)
def test_memory_adds_up_in_any_order(a: Memory, b: Memory, c: Memory) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    total = Memory(rss_bytes=1, pss_bytes=2) + Memory(rss_bytes=10)
    assert (total.rss_bytes, total.pss_bytes) == (11, None)


def test_a_record_is_laid_out_flat_and_in_order() -> None:
    @dataclasses.dataclass
    class Inner:
        b: int
        c: int | None

    @dataclasses.dataclass
    class Outer:
        a: int
        inner: Inner
        more: dict[str, int]
        z: str

    flat = row(Outer(1, Inner(2, None), {"d": 4}, "end"))
    assert list(flat.items()) == [("a", 1), ("b", 2), ("c", None), ("d", 4), ("z", "end")]


# Plugins


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package folder whose room ``datapath`` the test fills."""
    (tmp_path / "datapath").mkdir()
    monkeypatch.setattr(plugins, "PACKAGE_DIR", tmp_path)
    plugins.find.cache_clear()
    yield tmp_path / "datapath"
    plugins.find.cache_clear()


def test_a_plugin_is_read_and_not_imported(rooms: Path) -> None:
    (rooms / "my_path.py").write_text(
        '"""Reads twice.\n\nMore."""\nraise SystemExit\nSTORES = ("private", "mmap")\nN = len("ab")\n'
    )
    found = plugins.find("datapath")
    assert list(found) == ["my-path"]
    assert found["my-path"].summary == "Reads twice."
    assert found["my-path"].module == "shardlab.datapath.my_path"
    assert found["my-path"].fact("STORES") == ("private", "mmap")
    assert found["my-path"].fact("N", "computed") == "computed"


def test_helpers_are_no_plugins(rooms: Path) -> None:
    for name in ("__init__.py", "_helper.py", "b.py", "a.py"):
        (rooms / name).touch()
    assert list(plugins.find("datapath")) == ["a", "b"]


def test_the_help_has_a_line_for_each_plugin(rooms: Path) -> None:
    (rooms / "a.py").write_text('"""One."""')
    (rooms / "b.py").write_text('"""Two."""')
    assert plugins.describe("datapath") == "a: One.\nb: Two."


def test_every_plugin_of_shardlab_has_a_help_line() -> None:
    for room in ("datapath", "store", "dataset"):
        assert all(plugin.summary for plugin in plugins.find(room).values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("package.module:factory", True),
        ("file.py:factory", True),
        ("/a/b.py:make", True),
        ("distributed", False),
        ("synthetic:256MiB", False),
        (":factory", False),
        ("module:", False),
        ("module:1", False),
    ],
)
def test_a_reference_is_told_from_a_name(text: str, expected: bool) -> None:
    assert plugins.is_reference(text) is expected


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a user's own modules; what they add to the interpreter is taken back."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_factory_of_a_module(user: Path) -> None:
    (user / "users_module.py").write_text("def make():\n    return 'made'\n")
    assert plugins.load_reference("users_module:make", "--sampler")() == "made"


def test_a_factory_of_a_file_is_the_same_each_time(user: Path) -> None:
    (user / "sub").mkdir()
    (user / "sub" / "users_file.py").write_text("def make():\n    return 'made'\n")
    reference = f"{user}/sub/users_file.py:make"
    make = plugins.load_reference(reference, "--sampler")
    assert make() == "made"
    assert plugins.load_reference(reference, "--sampler") is make
    assert pickle.loads(pickle.dumps(make)) is make


def test_a_name_that_is_not_in_the_module_is_refused_with_those_that_are(user: Path) -> None:
    (user / "users_module.py").write_text("def make(): ...\ndef _hidden(): ...\nmake_it = 3\n")
    for name in ("absent", "make_it"):
        with pytest.raises(UsageError) as error:
            plugins.load_reference(f"users_module:{name}", "--sampler")
        assert str(error.value) == (
            f"--sampler: users_module must define a callable of this name, but got '{name}'; choose from make"
        )


@pytest.mark.parametrize("text", ["no_such_module_here:f", "no_such.module.here:f", "json.no_such:f"])
def test_a_module_that_does_not_exist_is_refused_with_a_cure(user: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"--dataset must name a module .*Cure: .*PYTHONPATH"):
        plugins.load_reference(text, "--dataset")


def test_a_file_that_does_not_exist_is_refused(user: Path) -> None:
    with pytest.raises(UsageError, match=r"--dataset must name a file that exists, but got 'absent\.py'"):
        plugins.load_reference("absent.py:f", "--dataset")


@pytest.mark.parametrize("reference", ["users_module:f", "{folder}/users_module.py:f"])
def test_an_import_that_fails_inside_the_users_module_is_the_users_own(user: Path, reference: str) -> None:
    (user / "users_module.py").write_text("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        plugins.load_reference(reference.format(folder=user), "--dataset")

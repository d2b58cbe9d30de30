"""From a command line to what will run: defaults, misfits, idle flags; and plugins that are files."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardlab
from shardlab import plugins
from shardlab.config import RunConfig
from shardlab.errors import UsageError
from shardlab.plan import Plan, path_plugin, resolve

SOURCE = Path(shardlab.__file__).parent
ROOMS = ("datapath", "store", "dataset")
FILES = [(room, file) for room in ROOMS for file in sorted((SOURCE / room).glob("[!_]*.py"))]


def resolved(**flags: Any) -> RunConfig:
    return resolve(RunConfig(**flags)).config


def notes(**flags: Any) -> tuple[str, ...]:
    return resolve(RunConfig(**flags)).notes


# Defaults


@pytest.mark.parametrize(
    ("sampler", "store"),
    [
        ("distributed", "private"), ("accelerate", "private"), ("accelerate-shard", "private"),
        ("accelerate-split", "private"), ("sharded", "mmap"), ("my.module:path", "private"),
    ],
)  # fmt: skip
def test_each_path_has_a_store_of_its_own(sampler: str, store: str) -> None:
    assert resolved(sampler=sampler).store == store


def test_a_path_in_a_file_has_a_store_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "my_file.py").touch()
    assert resolved(sampler=f"{tmp_path}/my_file.py:path").store == "private"
    with pytest.raises(UsageError, match="must name a file that exists"):
        resolved(sampler=f"{tmp_path}/other.py:path")


def test_nothing_of_a_config_stays_open() -> None:
    config = resolved()
    assert "auto" not in (config.store, config.start_method, config.worker_start_method, config.device)


def test_what_was_named_stays() -> None:
    named = {
        "store": "shared", "start_method": "forkserver", "worker_start_method": "spawn", "device": "cpu",
        "tail": "drop",
    }  # fmt: skip
    config = resolved(**named)
    assert {name: getattr(config, name) for name in named} == named


@pytest.mark.parametrize(("store", "method"), [("auto", "spawn"), ("shared", "spawn"), ("inherited", "fork")])
def test_ranks_start_by_spawn_unless_they_inherit(store: str, method: str) -> None:
    assert resolved(store=store).start_method == method


@pytest.mark.parametrize(("cuda", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_device_is_an_accelerator_where_there_is_one(cuda: bool, device: str) -> None:
    assert resolve(RunConfig(), cuda=cuda).config.device == device
    assert resolve(RunConfig(device="cpu"), cuda=cuda).config.device == "cpu"


def test_accelerates_spelling_of_the_tail_is_understood() -> None:
    assert resolved(sampler="accelerate-shard", even_batches=False).tail == "keep"
    assert resolved(sampler="accelerate-shard").tail == "pad"


@pytest.mark.parametrize("sampler", ["distributed", "accelerate"])
def test_a_path_that_never_looks_at_even_batches_pads_as_before_and_says_so(sampler: str) -> None:
    result = resolve(RunConfig(sampler=sampler, even_batches=False))
    assert result.config.tail == "pad"
    assert any(note.startswith("--even-batches has no effect here: ") for note in result.notes)


def test_the_plan_of_a_path_is_what_was_resolved() -> None:
    config = resolved(batch_size=7, workers=2, tail="drop", seed=5, shuffle=False, max_steps=9)
    plan = Plan.of(config, 100)
    assert (plan.samples, plan.batch_size, plan.workers, plan.tail) == (100, 7, 2, "drop")
    assert (plan.seed, plan.shuffle, plan.max_steps) == (5, False, 9)
    assert plan.worker_start_method == config.worker_start_method


# Idle flags


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ({"prefetch_factor": 4}, "--prefetch-factor has no effect here: there are no workers (--workers 0)"),
        ({"persistent_workers": True}, "--persistent-workers has no effect here: there are no workers (--workers 0)"),
        (
            {"worker_start_method": "spawn"},
            "--worker-start-method has no effect here: there are no workers (--workers 0)",
        ),
        ({"pin_memory": True}, "--pin-memory has no effect here: nothing is copied to an accelerator"),
    ],
)  # fmt: skip
def test_a_flag_that_changes_nothing_is_said_aloud(flags: dict[str, Any], note: str) -> None:
    assert notes(**flags) == (note,)


def test_a_flag_that_does_something_is_not_mentioned() -> None:
    assert notes() == ()
    assert notes(workers=1, prefetch_factor=4, persistent_workers=True, worker_start_method="spawn") == ()
    assert resolve(RunConfig(pin_memory=True), cuda=True).notes == ()


def test_a_default_that_was_spelled_out_is_not_mentioned() -> None:
    assert notes(prefetch_factor=2, persistent_workers=False, even_batches=True) == ()


# Refusals


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"sampler": "distribute"},
            r"--sampler must name a data path, but got 'distribute'; choose from .*distributed",
        ),
        ({"store": "ram"}, r"--store must name a store, but got 'ram'; choose from auto, .*shared"),
        (
            {"sampler": "accelerate-shard", "store": "reader"},
            r"--store must fit --sampler accelerate-shard \(every rank reads\), but got 'reader'; "
            r"choose from private, inherited, shared, mmap. Cure: use --store shared",
        ),
        ({"sampler": "distributed", "store": "reader"}, r"\(every rank reads\)"),
        ({"sampler": "sharded", "store": "private"}, r"its shards are mapped where they lie.*Cure: use --store mmap"),
        ({"sampler": "x:path", "store": "reader"}, r"any rank of it may read"),
        (
            {"sampler": "distributed", "tail": "keep"},
            r"--tail must be one that --sampler distributed can do, but got 'keep'; choose from pad, drop",
        ),
        ({"sampler": "accelerate", "tail": "keep"}, r"choose from pad, drop"),
        (
            {"store": "inherited", "start_method": "spawn"},
            r"--store inherited needs --start-method fork, but got 'spawn'.*Cure: leave --start-method out",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_choices_and_cure(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve(RunConfig(**flags))


def test_ranks_of_another_launcher_cannot_inherit() -> None:
    with pytest.raises(UsageError, match=r"needs ranks forked by shardlab itself.*use --store shared"):
        resolve(RunConfig(store="inherited"), joining=True)
    assert resolve(RunConfig(store="shared"), joining=True).config.store == "shared"


def test_every_store_that_a_path_names_exists_and_every_misfit_has_a_reason() -> None:
    stores = set(plugins.find("store"))
    for name, path in plugins.find("datapath").items():
        fitting, reasons = set(path.fact("STORES")), path.fact("STORE_REASONS", {})
        assert fitting <= stores, name
        assert set(reasons) == stores - fitting, name
        assert all(reasons.values()), name


@pytest.mark.parametrize("name", plugins.find("datapath"))
def test_every_path_runs_with_all_that_it_says_it_can(name: str) -> None:
    path = path_plugin(name)
    assert path is not None
    for store in path.fact("STORES"):
        for tail in path.fact("TAILS"):
            config = resolved(sampler=name, store=store, tail=tail)
            assert (config.store, config.tail) == (store, tail)


@pytest.mark.parametrize("name", plugins.find("datapath"))
def test_every_path_says_what_fits_it(name: str) -> None:
    path = path_plugin(name)
    assert path is not None
    assert path.fact("STORES")
    assert set(path.fact("TAILS")) <= {"pad", "drop", "keep"}
    assert path.fact("LAYOUT") in ("strided", "batches", "blocks", None)
    assert path.defines("open")
    assert set(path.fact("IGNORES", {})) <= set(RunConfig.__dataclass_fields__)


# Plugins are files


@pytest.mark.parametrize(("room", "file"), FILES, ids=lambda part: getattr(part, "stem", part))
def test_a_plugins_first_line_is_its_help(room: str, file: Path) -> None:
    docstring = ast.get_docstring(ast.parse(file.read_text()))
    assert docstring
    first, *rest = docstring.split("\n")
    assert first.strip()
    assert not rest or rest[0] == ""  # a summary that goes on would be cut in the help
    assert plugins.find(room)[file.stem.replace("_", "-")].summary == first


def shell(*words: str, path: Path = SOURCE.parent) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(path), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, check=False)


def test_the_help_shows_every_plugin() -> None:
    done = shell("-m", "shardlab.profile", "--help")
    assert done.returncode == 0
    shown = " ".join(done.stdout.replace("│", " ").split())
    for room in ("datapath", "store"):
        for name, plugin in plugins.find(room).items():
            assert f"{name}: {plugin.summary}" in shown
    for plugin in plugins.find("dataset").values():
        assert plugin.summary in shown


WITHOUT_TORCH = """
import sys
from shardlab import profile
try:
    code = profile.main(sys.argv[1:])
except SystemExit as error:
    code = error.code
print(code, sorted({"torch", "accelerate", "torchvision", "pandas"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--help"], 0),
        (["--dry-run"], 0),
        (["--dry-run", "--sampler", "accelerate", "--store", "shared", "--dataset", "mnist"], 0),
        (["--sampler", "nothing"], 2),
        (["--store", "reader"], 2),
        (["--nproc", "0"], 2),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_asking_and_being_refused_load_no_torch(flags: list[str], code: int) -> None:
    done = shell("-c", WITHOUT_TORCH, *flags)
    assert done.stdout.splitlines()[-1] == f"{code} []", done.stderr


MINE = '''"""a path that somebody dropped in, whole."""

from shardlab.datapath._torch import TorchLoader, dataloader_options

STORES = ("shared", "mmap")
TAILS = ("drop",)


def open(store, plan, world): ...
'''


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The package in another place, with a file more in ``datapath``."""
    shutil.copytree(SOURCE, tmp_path / "shardlab", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "shardlab" / "datapath" / "dropped_in.py").write_text(MINE)
    return tmp_path


def test_a_file_dropped_in_is_a_data_path(copied: Path) -> None:
    shown = shell("-m", "shardlab.profile", "--help", path=copied).stdout
    assert "dropped-in: a path that somebody dropped in, whole." in " ".join(shown.replace("│", " ").split())
    dry = shell(
        "-m", "shardlab.profile", "--dry-run", "--sampler", "dropped-in", "--tail", "drop", path=copied
    )
    assert dry.returncode == 0, dry.stderr
    said = dict(line.split(maxsplit=1) for line in dry.stdout.splitlines())
    assert (said["sampler"], said["store"], said["tail"]) == ("dropped-in", "shared", "drop")
    refused = shell(
        "-m",
        "shardlab.profile",
        "--sampler",
        "dropped-in",
        "--store",
        "private",
        "--tail",
        "drop",
        path=copied,
    )
    assert refused.returncode == 2
    assert "choose from shared, mmap" in refused.stderr

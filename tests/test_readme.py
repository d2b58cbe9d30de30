"""The README is true: its commands run, its table is the code's, its first two lines are the only set-up."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab import plugins
from shardlab.plan import USER_PATH_STORES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.partition("  #")[0].strip()
    for kind, block in BLOCKS[2:]
    if kind == "sh"
    for line in block.splitlines()
    if "experiments/" not in line  # minutes each
]


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A folder with the files that the README's examples name."""
    for kind, block in BLOCKS:
        if kind == "python" and block.startswith("# my_"):
            name, _, text = block.partition("\n")
            (tmp_path / name.removeprefix("# ")).write_text(text)
    return tmp_path


def arguments(command: str) -> list[str]:
    """The module and the words that follow it."""
    return shlex.split(command.partition(" -m ")[2])


def test_the_readme_opens_with_two_commands_that_set_everything_up():
    assert [kind for kind, _ in BLOCKS[:2]] == ["sh", "sh"]
    for _, block in BLOCKS[:2]:
        assert len(block.strip().splitlines()) == 1
        assert block.startswith("python3 -m venv .venv && .venv/bin/pip install -q -e ")


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if re.search(" -m shardlab.(profile|train|compare|predict)", c)]
)
def test_each_command_is_one_that_would_run(command: str, users_folder: Path):
    words = arguments(command)
    if "/tmp/my-shards" in words:
        pytest.skip("needs the shards that the line above it writes; run by the slow test")
    done = subprocess.run(
        [sys.executable, "-m", *words, "--dry-run"],
        cwd=users_folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_all_commands_run_in_their_order(users_folder: Path):
    bin_folder = Path(sys.executable).parent
    for command in COMMANDS:
        if re.search("mnist|shardlab.train", command) and "SHARDLAB_DATA" not in os.environ:
            continue
        line = command.replace(".venv/bin/", f"{bin_folder}/").replace("/tmp/my-", f"{users_folder}/")
        done = subprocess.run(
            ["bash", "-c", line], cwd=users_folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_table_of_paths_and_stores_is_the_codes():
    rows = re.findall(r"^\| (`[\w-]+`|your own) \| [^|]+ \|(.*)\|$", README, re.MULTILINE)
    stores = ["private", "inherited", "reader", "shared", "mmap"]
    said = {
        name.strip("`"): {s: cell.strip() for s, cell in zip(stores, cells.split("|"), strict=True)}
        for name, cells in rows
        if cells.count("|") == len(stores) - 1
    }
    true = {name: plugin.fact("STORES") for name, plugin in plugins.find("datapath").items()}
    true["your own"] = USER_PATH_STORES
    del said["--sampler"]  # the heading
    assert said.keys() == true.keys()
    for name, fitting in true.items():
        assert {s for s, cell in said[name].items() if cell} == set(fitting), name
        assert said[name][fitting[0]] == "default", name


def test_every_picture_is_there_and_is_described():
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", README)
    assert pictures
    assert all(said and (ROOT / file).is_file() for said, file in pictures)


def test_every_experiment_is_named():
    asking = [file for file in (ROOT / "experiments").glob("*.py") if "How to read the answer" in file.read_text()]
    assert len(asking) > 15
    assert not {file.name for file in asking} - set(re.findall(r"experiments/(\w+\.py)", README))


def test_every_experiment_named_is_there():
    named = re.findall(r"experiments/(\w+\.py)", README)
    assert named
    assert all((ROOT / "experiments" / name).is_file() for name in named)


@pytest.mark.parametrize("room", ["datapath", "store", "framework"])
def test_everything_that_can_be_named_is_in_the_readme(room: str):
    for name in plugins.find(room):
        assert f"`{name}`" in README

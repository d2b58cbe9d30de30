"""``--explain`` prints what the dictionary and the README say."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from shardlab import compare, profile, show
from shardlab.analysis.load import columns
from shardlab.comparing import screen
from shardlab.errors import UsageError
from shardlab.explain import DICTIONARY, explained
from shardlab.records import NodeRecord

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_readme_says_the_same():
    section = DICTIONARY.read_text().partition("## What the numbers mean\n")[2].partition("\n## ")[0]
    assert section.strip() in README


PLAIN = {"rank", "steps", "node", "from", "to", "processes", "configuration"}  # words that say it themselves
NODE_COLUMNS = re.findall(r'^        "([\w ]+)",$', inspect.getsource(show.node_table), re.MULTILINE)


@pytest.mark.parametrize("name", {*show.RANK_COLUMNS, *NODE_COLUMNS, *screen.COLUMNS} - PLAIN)
def test_headings_on_the_screen_are_explained(name: str):
    assert len(explained(name)) > 60


def test_the_headings_of_nodes_were_found():
    assert "one copy MiB" in NODE_COLUMNS and len(NODE_COLUMNS) == 10


def test_every_column_is_explained():
    names = {*columns("runs"), *columns("ranks"), *(field.name for field in dataclasses.fields(NodeRecord))}
    for name in names:
        assert explained(name).startswith(name)


def test_a_number_that_is_none_is_refused_with_what_it_may_have_meant():
    with pytest.raises(UsageError, match=r"'copis'; choose from copies"):
        explained("copis")


@pytest.mark.parametrize("command", [profile, compare])
def test_the_commands_print_it_and_run_nothing(command: object, capsys: pytest.CaptureFixture[str]):
    assert command.main(["--explain", "stall_ratio"]) == 0  # type: ignore[attr-defined]
    assert "nothing computes" in capsys.readouterr().out

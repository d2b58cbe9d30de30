"""Imports go down only, and no rank pays for pandas: read from the sources, nothing is imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"

VALUES = {
    "errors", "world", "plugins", "config", "trainconfig", "plan", "records", "csvlog", "filelock", "process",
    "intervals", "words", "explain", "choosing",
}  # fmt: skip
LEVELS = {
    "values": 0,
    "index": 1,
    "shm": 1,
    "wake": 1,
    "collective": 1,
    "measure": 1,
    "shards": 1,
    "ring": 2,
    "dataset": 2,
    "store": 3,
    "sampler": 3,
    "datapath": 4,
    "framework": 4,
    "engine": 5,
    "library": 5,
    "launch": 6,
    "analysis": 6,
    "comparing": 7,
    "predicting": 7,
    "reporting": 7,
    "watching": 7,
    "commands": 8,
}
ONLY_VALUES = {"measure", "analysis"}  # they stand beside the others
PLUGINS = {"datapath", "store", "framework"}  # their files never import each other, helpers apart
NOT_IN_A_RANK = {"analysis", "comparing", "predicting", "reporting", "watching", "commands"}
HEAVY = {"pandas", "matplotlib", "rich"}  # tens of MiB in each rank


def room_of(module: str) -> str:
    """``shardlab.store.mmap`` is in store; files of the package itself are values or commands."""
    first = module.split(".")[1] if "." in module else ""
    return "values" if first in VALUES else first if first in LEVELS else "commands"


def violations(sources: Mapping[str, str]) -> list[str]:
    """Every import that breaks a rule, for sources by module name, a line each."""
    found = []
    for module, text in sources.items():
        for target, line, at_import in imports_of(module, ast.parse(text), sources):
            rule = broken_rule(module, target, at_import)
            if rule:
                found.append(f"{module}:{line} imports {target}: {rule}")
    return list(dict.fromkeys(found))


def broken_rule(module: str, target: str, at_import: bool) -> str | None:
    own, other = room_of(module), room_of(target)
    if target.split(".")[0] != "shardlab":
        return library_rule(module, target.split(".")[0], at_import)
    if own == other:
        is_plugin = own in PLUGINS and target.count(".") == 2 and not target.split(".")[2].startswith("_")
        return f"files of {own} do not know each other" if is_plugin else None
    if own in ONLY_VALUES and other != "values":
        return f"{own} imports values only"
    if LEVELS[other] > LEVELS[own]:
        return f"{own} is below {other}"
    return f"{own} and {other} are neighbours" if LEVELS[other] == LEVELS[own] else None


def library_rule(module: str, library: str, at_import: bool) -> str | None:
    # Every import of a module runs the package's own file first, so what holds for values holds for it.
    if library == "torch" and (room_of(module) == "values" or (module == "shardlab" and at_import)):
        return "values import no torch"
    if library in HEAVY and at_import and (module == "shardlab" or room_of(module) not in NOT_IN_A_RANK):
        return "a rank would load it"
    return None


def imports_of(module: str, tree: ast.Module, known: Mapping[str, str]) -> Iterator[tuple[str, int, bool]]:
    """(imported module, line, whether importing ``module`` runs it) of each import, in functions too."""
    deferred = {id(inner) for node in ast.walk(tree) if is_deferred(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        at_import = id(node) not in deferred
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, at_import
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node, is_package=any(name.startswith(module + ".") for name in known))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in known else base, node.lineno, at_import


def is_deferred(node: ast.AST) -> bool:
    """True for function bodies and ``if TYPE_CHECKING:``, which importing a module does not run."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def absolute(module: str, node: ast.ImportFrom, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    up = node.level - 1 if is_package else node.level
    parents = module.split(".")[: len(module.split(".")) - up]
    return ".".join([*parents, *([node.module] if node.module else [])])


def package_sources() -> dict[str, str]:
    """Source text of every file of shardlab, by module name."""
    files = sorted((SOURCES / "shardlab").rglob("*.py"))
    names = [".".join(file.relative_to(SOURCES).with_suffix("").parts) for file in files]
    return {
        name.removesuffix(".__init__"): file.read_text(encoding="utf-8")
        for name, file in zip(names, files, strict=True)
    }


def test_no_import_of_shardlab_breaks_a_rule() -> None:
    assert violations(package_sources()) == []


def test_importing_the_values_loads_no_heavy_library() -> None:
    imports = "; ".join(f"import shardlab.{name}" for name in sorted(VALUES))
    command = [sys.executable, "-c", f"{imports}; import sys; print(*sys.modules)"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    loaded = subprocess.check_output(command, env=environment, text=True).split()
    assert "shardlab.errors" in loaded
    assert not {"torch", "accelerate", "pandas", "matplotlib"} & set(loaded)


def test_every_file_is_read_and_every_room_is_known() -> None:
    sources = package_sources()
    assert {"shardlab.errors", "shardlab.analysis.load", "shardlab.datapath"} <= set(sources)
    folders = {path.parent.name for path in (SOURCES / "shardlab").glob("*/__init__.py")}
    assert folders <= set(LEVELS)


# A small package in the same rooms: each case below adds one file to it.
KNOWN = {
    "shardlab" + name: ""
    for name in (
        "",
        ".errors",
        ".config",
        ".shm",
        ".profile",
        ".index",
        ".index.order",
        ".measure",
        ".measure.procfs",
        ".dataset",
        ".store",
        ".store.mmap",
        ".store._share",
        ".datapath",
        ".datapath.ring",
        ".datapath._torch",
        ".engine",
        ".engine.loop",
        ".launch",
        ".launch.agent",
        ".analysis",
        ".analysis.load",
    )
}


@pytest.mark.parametrize(
    ("module", "text", "rule"),
    [
        ("shardlab.errors", "from shardlab.index import order", "values is below index"),
        ("shardlab.index.order", "import shardlab.store.mmap", "index is below store"),
        ("shardlab.store.mmap", "from shardlab.datapath import ring", "store is below datapath"),
        ("shardlab.store.mmap", "def f():\n    from shardlab.engine import x", "store is below engine"),
        ("shardlab.dataset", "if TYPE_CHECKING:\n    from shardlab import store", "dataset is below store"),
        ("shardlab.engine", "from ..launch import x", "engine is below launch"),
        ("shardlab.launch", "from .. import profile", "launch is below commands"),
        ("shardlab.launch", "from . import profile, x\nfrom shardlab import f", "launch is below commands"),
        ("shardlab.shm", "from shardlab.index import order", "shm and index are neighbours"),
        ("shardlab.launch", "from shardlab.analysis import load", "launch and analysis are neighbours"),
        ("shardlab.engine", "from shardlab.analysis.load import load", "engine is below analysis"),
        ("shardlab.analysis.load", "from shardlab.store import mmap", "analysis imports values only"),
        ("shardlab.measure.procfs", "from shardlab import shm", "measure imports values only"),
        ("shardlab.datapath.keyed", "from shardlab.datapath.ring import open", "do not know each other"),
        ("shardlab.datapath.keyed", "from . import ring", "do not know each other"),
        ("shardlab.datapath._torch", "from shardlab.datapath import ring", "do not know each other"),
        ("shardlab.store.private", "from .mmap import open", "do not know each other"),
        ("shardlab.engine", "import pandas as pd", "a rank would load it"),
        ("shardlab.engine", "try:\n    from rich import table\nexcept ImportError:\n    pass", "a rank"),
        ("shardlab.launch", "class A:\n    import matplotlib.pyplot", "a rank would load it"),
        ("shardlab", "import pandas", "a rank would load it"),
        ("shardlab", "import torch", "values import no torch"),
        ("shardlab.config", "def f():\n    import torch.distributed", "values import no torch"),
    ],
)
def test_a_bad_import_is_found(module: str, text: str, rule: str) -> None:
    found = violations({**KNOWN, module: text})
    assert found
    assert rule in found[0]
    assert found[0].startswith(f"{module}:")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("shardlab.store.mmap", "import torch\nfrom shardlab import shm\nfrom shardlab.store import _share"),
        ("shardlab.datapath.ring", "from shardlab.store import Store\nfrom shardlab.datapath import Loader"),
        ("shardlab.datapath", "from . import _torch"),
        ("shardlab.measure.procfs", "from shardlab.measure import procfs\nfrom shardlab.errors import X"),
        ("shardlab.analysis.load", "import pandas\nfrom shardlab.config import RunConfig"),
        ("shardlab.profile", "import rich\nfrom shardlab import analysis, launch, profile"),
        ("shardlab.engine", "def f():\n    import pandas"),
        ("shardlab.engine", "if TYPE_CHECKING:\n    import pandas"),
        ("shardlab", "def __getattr__(name):\n    import torch"),
    ],
)
def test_a_good_import_is_left_alone(module: str, text: str) -> None:
    assert violations({**KNOWN, module: text}) == []

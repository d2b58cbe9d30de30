"""Data paths, stores and dataset kinds are files: a file's name is its flag value.

``accelerate-shard`` is ``datapath/accelerate_shard.py``. The docstring's first line is the help line and
module-level literals (``STORES``, ``TAILS``) say what fits; both are read from the source, so that
``--help`` and the checks of a command line import no torch. A file whose name starts with ``_`` is a helper.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from shardlab.errors import UsageError

PACKAGE_DIR = Path(__file__).parent


@dataclass(frozen=True)
class Plugin:
    """What a file says of itself without being imported."""

    name: str
    module: str
    summary: str
    facts: dict[str, Any]
    functions: frozenset[str]

    def defines(self, function: str) -> bool:
        """Whether the file has a module-level function of this name."""
        return function in self.functions

    def fact(self, name: str, default: Any = None) -> Any:
        """The module-level literal ``name`` of the file."""
        return self.facts.get(name, default)

    def load(self) -> ModuleType:
        """Import the file."""
        return importlib.import_module(self.module)


@cache
def find(room: str) -> dict[str, Plugin]:
    """Every plugin of ``datapath``, ``store`` or ``dataset``, by flag value."""
    files = sorted((PACKAGE_DIR / room).glob("[!_]*.py"))
    plugins = [_read(room, file) for file in files]
    return {plugin.name: plugin for plugin in plugins}


def describe(room: str) -> str:
    """One line for each plugin of a room, as ``--help`` prints it."""
    lines = ((name, plugin.summary) for name, plugin in find(room).items())
    return "\n".join(summary if summary.startswith(name) else f"{name}: {summary}" for name, summary in lines)


def is_reference(text: str) -> bool:
    """True for ``package.module:factory`` and ``file.py:factory``."""
    module, colon, name = text.rpartition(":")
    return bool(colon) and name.isidentifier() and bool(module) and not module[0].isdigit()


def load_reference(text: str, flag: str) -> Callable[..., Any]:
    """The callable that ``package.module:factory`` or ``file.py:factory`` names.

    Raises UsageError when the module, the file or the name does not exist. An exception inside the
    user's module is left as it is: it is the user's own, and its traceback says where.
    """
    module_name, _, name = text.rpartition(":")
    module = (
        _module_from_file(module_name, flag) if module_name.endswith(".py") else _module(module_name, flag)
    )
    factory = getattr(module, name, None)
    if not callable(factory):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{flag}: {module_name} must define a callable of this name", name, names)
    return factory  # type: ignore[no-any-return]


def _module(name: str, flag: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the user's own package in the current folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module was found, and something that it imports was not
        raise UsageError(
            f"{flag} must name a module that can be imported",
            name,
            cure="give file.py:factory, or set PYTHONPATH",
        ) from None


def _module_from_file(path: str, flag: str) -> ModuleType:
    file = Path(path).resolve()
    if not file.is_file():
        raise UsageError(f"{flag} must name a file that exists", path)
    # Under its own stem, its folder on the path: worker processes can import it again by that name.
    loaded = sys.modules.get(file.stem)
    if loaded is not None and _is_same_file(getattr(loaded, "__file__", None), file):
        return loaded
    if loaded is not None or _is_elsewhere(file):
        raise UsageError(
            f"{flag}: a file must not have the name of another module", path, cure="rename the file"
        )
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    return importlib.import_module(file.stem)


def _is_elsewhere(file: Path) -> bool:
    """True where importing the file's stem would find another module than the file."""
    spec = importlib.util.find_spec(file.stem)
    return spec is not None and not _is_same_file(spec.origin, file)


def _is_same_file(path: str | None, file: Path) -> bool:
    return path is not None and os.path.exists(path) and os.path.samefile(path, file)


def _read(room: str, file: Path) -> Plugin:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    facts: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                facts[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    functions = frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return Plugin(file.stem.replace("_", "-"), f"shardlab.{room}.{file.stem}", summary, facts, functions)

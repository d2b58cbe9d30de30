"""Results as frames and pictures; the one room where pandas is imported.

>>> from shardlab import analysis
>>> results = analysis.load("results")  # doctest: +SKIP
>>> table = analysis.by_configuration(results.runs)  # doctest: +SKIP
>>> analysis.figures.throughput(ax, table)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from types import ModuleType

from shardlab.analysis.aggregate import by_configuration, label, labelled, machines
from shardlab.analysis.ledgers import delivered
from shardlab.analysis.load import Results, load
from shardlab.analysis.ratios import against

__all__ = [
    "Results",
    "against",
    "by_configuration",
    "delivered",
    "figures",
    "label",
    "labelled",
    "load",
    "machines",
]


def __getattr__(name: str) -> ModuleType:
    """``figures`` is imported when it is asked for: it alone needs matplotlib."""
    if name == "figures":
        return importlib.import_module("shardlab.analysis.figures")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

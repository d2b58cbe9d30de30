"""Benchmarks measure where figures are asked for; in the plain run each case runs once, tiny, for its counters."""

from __future__ import annotations

import pytest

ASKING = ("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare")


def pytest_configure(config: pytest.Config) -> None:
    """Undo ``--benchmark-disable`` of the settings, before pytest-benchmark reads it."""
    if any(config.getoption(name) for name in ASKING):
        config.option.benchmark_disable = False

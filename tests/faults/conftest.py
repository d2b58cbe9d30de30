"""A stage for every test here, on which a good run has been before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.scene import Scene, stage


@pytest.fixture(scope="session")
def good_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run that ended well."""
    with stage(tmp_path_factory.mktemp("good")) as scene:
        ended = scene.run(
            "--dataset", "synthetic:4MiB:1000", "--nproc", "2", "--start-method", "fork", "--quiet"
        )
        assert ended.code == 0, ended.err
        assert [row["status"] for row in scene.rows("runs.csv")] == ["ok"]
        return scene.results


@pytest.fixture
def scene(tmp_path: Path, good_results: Path) -> Iterator[Scene]:
    """Fails where a process, a temporary file or shared memory is left, or an earlier row is lost."""
    with stage(tmp_path, good_results) as scene:
        yield scene

"""The notebook runs from top to bottom in a kernel of its own, and shows what it says it shows."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebook needs nbformat")

NOTEBOOK = Path(__file__).parents[1] / "experiments" / "notebook.ipynb"
TOGETHER = {"distributed": 2, "keyed": 1, "ring": 1}
"""Copies of the dataset that two processes hold."""


def outputs(notebook: Any, kind: str) -> list[str]:
    """What the code cells put out of a MIME type; ``stream`` is printed text."""
    found: list[str] = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                found += [output.text] if kind == "stream" else []
            else:
                found += [output.data[kind]] if kind in output.get("data", {}) else []
    return found


def table(notebook: Any) -> pd.DataFrame:
    """The one table of runs."""
    (html,) = outputs(notebook, "text/html")
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in html.split("<tr")]
    rows = [",".join(row) for row in cells if row]
    return pd.read_csv(io.StringIO("\n".join(rows)), index_col=0)


def check(notebook: Any) -> None:
    """Two processes in each run, copies as many as the text says, a picture, and no error."""
    runs = table(notebook)
    assert list(runs["framework"]) == ["ddp", "ddp", "accelerate"]
    assert list(runs["sampler"]) == list(TOGETHER)
    assert list(runs["world_size"]) == [2, 2, 2]
    for sampler, copies in zip(runs["sampler"], runs["copies"], strict=True):
        assert copies == pytest.approx(TOGETHER[sampler], abs=0.4), sampler
    assert (runs["accuracy"] > 0.8).all()
    assert runs["stall_ratio"].between(0, 1).all()
    assert len(outputs(notebook, "image/png")) == 1


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient", reason="running the notebook needs nbclient")
    pytest.importorskip("ipykernel", reason="running the notebook needs ipykernel")
    pytest.importorskip("matplotlib", reason="the notebook's picture needs matplotlib")
    if "SHARDLAB_DATA" not in os.environ:
        pytest.skip("SHARDLAB_DATA names no folder with MNIST")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    check(notebook)
    assert list(tmp_path.iterdir()) == []


def test_the_notebook_is_kept_as_it_ran() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    check(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert NOTEBOOK.stat().st_size < 200_000
    printed = "\n".join(outputs(notebook, "stream"))
    assert not re.search(r"(^|[\s'\"=(])/\w", printed)  # the path of a machine
    assert not re.search(r"\bwarn|Warning", printed)

"""The notebook of the committed results runs from top to bottom, and every cell of it shows something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebook needs nbformat")

NOTEBOOK = Path(__file__).parents[1] / "experiments" / "results.ipynb"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any) -> set[str]:
    """MIME types of what a cell put out."""
    return {kind for output in cell.outputs for kind in output.get("data", {})}


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(notebook))


@pytest.mark.slow
def test_every_cell_shows_a_figure_or_a_table() -> None:
    client = pytest.importorskip("nbclient", reason="running the notebook needs nbclient")
    pytest.importorskip("ipykernel", reason="running the notebook needs ipykernel")
    pytest.importorskip("matplotlib", reason="its figures need matplotlib")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    client.NotebookClient(notebook, timeout=100, kernel_name="python3", resources=place).execute()
    for cell in code_cells(notebook):
        kind = "image/png" if "figures.sheet(" in cell.source else "text/html"
        assert kind in shown(cell), cell.source
        assert not [output.text for output in cell.outputs if output.output_type == "stream"]
    assert sum("image/png" in shown(cell) for cell in code_cells(notebook)) == 8

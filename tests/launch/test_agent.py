"""What ranks start with: nothing of whoever started them."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import run

DATASET = """
import sys
import torch

def load():
    started = getattr(sys.modules["__main__"], "__file__", None) or ""
    assert not started.endswith("profile.py"), started
    assert not (getattr(sys.modules["__mp_main__"], "__file__", None) or "").endswith("profile.py")
    return torch.utils.data.TensorDataset(torch.arange(10.0))
"""


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_rank_does_not_import_what_started_it(start_method: str, tmp_path: Path):
    (tmp_path / "ten.py").write_text(DATASET)
    flags = ("--dataset", f"{tmp_path / 'ten.py'}:load", "--nproc", 1, "--start-method", start_method, "--no-control")
    ended = run("shardlab.profile", *flags, results=tmp_path / "results", deadline_s=120)
    assert ended.row["delivered"] == 10

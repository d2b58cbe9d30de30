"""The scripts of the tutorial's ladder run, learn, and count each test sample once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.world import without_rendezvous

LADDER = Path(__file__).parents[1] / "experiments" / "ladder"
TWO = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "2", "--standalone"]
SAMPLES = 2001  # two ranks do not have equally many


@pytest.mark.slow
@pytest.mark.skipif("SHARDLAB_DATA" not in os.environ, reason="needs MNIST: set SHARDLAB_DATA")
@pytest.mark.parametrize(
    ("script", "launcher"),
    [("plain.py", [sys.executable]), ("ddp.py", TWO), ("accelerated.py", TWO), ("trainer.py", TWO)],
)
def test_each_rung_learns_and_counts_every_sample_once(script: str, launcher: list[str], tmp_path: Path) -> None:
    environment = {
        **without_rendezvous(os.environ), "LADDER_SAMPLES": str(SAMPLES), "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "1", "TMPDIR": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [*launcher, str(LADDER / script)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"(0\.\d{4}) of (\d+)$", done.stdout.strip())
    assert found is not None, done.stdout
    assert int(found[2]) == SAMPLES
    assert float(found[1]) > 0.5  # ten classes: a tenth is chance

"""Two hundred processes: what following them costs, and that the screen holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from command import SOURCE
from shardlab import csvlog

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")

JOB = """
import subprocess, sys, time
from multiprocessing import get_context
import numpy as np

def hold():
    kept = np.random.default_rng(0).integers(0, 256, 32 << 20, np.uint8)
    time.sleep(60)

if __name__ == "__main__":
    others = [subprocess.Popen(["sleep", "60"]) for _ in range(200)]
    for rank in range(2):
        get_context("spawn").Process(target=hold, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    for other in others:
        other.kill()
        other.wait()
"""


@pytest.mark.slow
def test_two_hundred_processes_are_followed_within_a_hundredth_of_a_core(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdin is not None and job.stdout is not None
        job.stdout.readline()
        command = [sys.executable, "-m", "shardlab.watch", "--json", "--results", str(tmp_path), "--census", "never"]
        done = subprocess.run(
            [*command, "--pid", str(job.pid), "--for-seconds", "12"], env=os.environ | {"PYTHONPATH": SOURCE},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        job.stdin.close()
        job.wait(60)
    told = json.loads(done.stdout)
    assert told["processes"] == 204  # with the launcher and a tracker
    assert told["unreadable"] == 0
    rows = [row for row in csvlog.read_rows(tmp_path / "memory.csv") if float(row["t_s"]) > 2]
    seconds = told["seconds"] - 2
    of_pss = [row for row in rows if row["pss_bytes"]]
    assert len({row["pid"] for row in rows}) == 204
    assert 1 <= len(of_pss) <= 5 * seconds  # one process at a time, not all of them
    per_process = Counter(row["pid"] for row in rows if not row["pss_bytes"])
    assert max(per_process.values()) <= seconds + 2  # of one whose memory rests a row a second
    assert len(done.stderr.splitlines()) < 20
    with capsys.disabled():
        share = told["watch_cpu_s"] / told["seconds"]
        print(f"\n204 processes: {share:.2%} of a core, {len(of_pss) / seconds:.1f} readings of PSS a second")

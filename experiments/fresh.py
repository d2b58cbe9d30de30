"""One measurement in a process of its own, which is a script of this folder that prints one JSON object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).parent
TIMEOUT_S = 300


def measured(script: str, *words: object) -> dict[str, Any]:
    """What ``python experiments/SCRIPT WORDS`` prints. Raises CalledProcessError where it fails."""
    # torch warns where workers outnumber the cores, which is what is measured here
    command = [sys.executable, "-W", "ignore::UserWarning", str(HERE / script), *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S)
    return dict(json.loads(done.stdout.splitlines()[-1]))

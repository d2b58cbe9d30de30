"""A program that starts ranks as a notebook does: each of two processes runs a function, by Accelerate's launcher.

    python from_a_function.py FOLDER [FLAGS OF shardlab.train]

The launcher leaves folders of its own behind, which go to FOLDER; those of the ranks go where they always do.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from accelerate import notebook_launcher

from shardlab import train


def rank(folder: str | None, *flags: str) -> None:
    """What each process runs, with TMPDIR as it was."""
    os.environ.pop("TMPDIR")
    if folder is not None:
        os.environ["TMPDIR"] = folder
    sys.exit(train.main(list(flags)))


if __name__ == "__main__":
    ranks_folder = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = sys.argv[1]
    Path(sys.argv[1]).mkdir(exist_ok=True)
    notebook_launcher(
        rank, (ranks_folder, *sys.argv[2:]), num_processes=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0"
    )
    print("the launcher returned", file=sys.stderr)

"""Measure what feeding the ranks costs: copies of the dataset, samples per second, and who got what.

Runs the data path that --sampler names over the dataset, on --nproc ranks of this machine or as a rank of the
job that torchrun or accelerate launch started, and prints a table, a verdict and rows of CSV.
"""

from __future__ import annotations

import os
import sys

from shardlab import command
from shardlab.config import parse
from shardlab.ends import exit_code_of

PROG = "python -m shardlab.profile"


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; it has to be set before torch loads
    argv = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: _main(argv))


def _main(argv: list[str]) -> int:
    config, output = parse(__doc__ or "", command.control_argv() or argv, PROG)
    return command.run(config, output, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""Train a model through a data path, and measure what feeding it costs.

Trains --model on --dataset with the framework that --framework names, on --nproc ranks of this machine or as a rank
of the job that torchrun or accelerate launch started. Samples come by any --sampler from any --store. Prints what
shardlab.profile prints, with the accuracy on data that was not trained on.
"""

from __future__ import annotations

import os
import sys

import tyro

from shardlab import command
from shardlab.config import OutputConfig, RunConfig
from shardlab.ends import exit_code_of
from shardlab.trainconfig import DEFAULTS, TrainConfig

PROG = "python -m shardlab.train"
WEEK_S = 7 * 86400.0  # training is not ended because it takes long


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; it has to be set before torch loads
    argv = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: _main(argv))


def _main(argv: list[str]) -> int:
    config, train, output = parse(command.control_argv() or argv)
    return command.run(config, output, argv, train)


def parse(argv: list[str]) -> tuple[RunConfig, TrainConfig, OutputConfig]:
    """The command line as values. Wrong flags exit with 2, as every command's do."""

    def all_three(
        run: tyro.conf.OmitArgPrefixes[RunConfig] = DEFAULTS,
        train: tyro.conf.OmitArgPrefixes[TrainConfig] = TrainConfig(),  # noqa: B008
        output: tyro.conf.OmitArgPrefixes[OutputConfig] = OutputConfig(timeout=WEEK_S),  # noqa: B008
    ) -> tuple[RunConfig, TrainConfig, OutputConfig]:
        return run, train, output

    return tyro.cli(all_three, description=__doc__, args=argv, prog=PROG)


if __name__ == "__main__":
    raise SystemExit(main())

"""Measure what feeding the ranks costs: copies of the dataset, samples per second, and who got what.

Runs the data path that --sampler names over the dataset, on --nproc ranks of this machine or as a rank of the
job that torchrun or accelerate launch started, and prints a table, a verdict and rows of CSV.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import asdict

from shardlab.config import OutputConfig, RunConfig, parse
from shardlab.errors import ExitCode, ShardlabError
from shardlab.plan import Resolved, resolve
from shardlab.world import is_joining

PROG = "python -m shardlab.profile"


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; it has to be set before torch loads
    argv = sys.argv[1:] if argv is None else argv
    try:
        config, output = parse(__doc__ or "", argv, PROG)
        return _profile(config, output, argv)
    except ShardlabError as error:
        print(f"shardlab: {error}", file=sys.stderr)
        return int(getattr(error, "code", error.exit_code))
    except BrokenPipeError:
        # Whoever read the output went away. Python would complain once more while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("shardlab: interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)


def _profile(config: RunConfig, output: OutputConfig, argv: list[str]) -> int:
    joining = is_joining()
    resolved = resolve(config, joining=joining, cuda=config.device == "auto" and _has_cuda())
    if output.dry_run:
        return _dry_run(resolved, output)
    if joining:
        from shardlab import joined

        return joined.run_joined(resolved, output, argv)
    from shardlab import local

    return local.run_local(resolved, output, argv)


def _dry_run(resolved: Resolved, output: OutputConfig) -> int:
    from shardlab.launch.spec import spec_of

    spec_of(resolved.config)
    for note in resolved.notes:
        print(f"Note: {note}")
    for name, value in (asdict(resolved.config) | asdict(output)).items():
        print(f"{name:20} {value}")
    return int(ExitCode.OK)


def _has_cuda() -> bool:
    """Whether torch would find an accelerator, asked without loading torch where there can be none."""
    return os.path.exists("/dev/nvidiactl")


if __name__ == "__main__":
    raise SystemExit(main())

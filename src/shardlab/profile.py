"""Measure what feeding the ranks costs: copies of the dataset, samples per second, and who got what.

Runs the data path that --sampler names over the dataset, on --nproc ranks of this machine or as a rank of the
job that torchrun or accelerate launch started, and prints a table, a verdict and rows of CSV.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict

from shardlab.config import OutputConfig, RunConfig, parse
from shardlab.ends import exit_code_of
from shardlab.errors import ExitCode
from shardlab.plan import Resolved, resolve
from shardlab.process import die_with
from shardlab.world import is_joining

PROG = "python -m shardlab.profile"


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; it has to be set before torch loads
    argv = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: _main(argv))


def _main(argv: list[str]) -> int:
    config, output = parse(__doc__ or "", _control_argv() or argv, PROG)
    return _profile(config, output, argv)


def _control_argv() -> list[str] | None:
    """The flags of the run that this one is the control of, where it is one."""
    if "SHARDLAB_CONTROL" not in os.environ:
        return None
    from shardlab.launch import control

    request = control.requested()
    assert request is not None
    die_with(request.parent)
    return request.argv


def _profile(config: RunConfig, output: OutputConfig, argv: list[str]) -> int:
    joining = is_joining()
    cuda = config.device == "auto" and _has_cuda(config.nproc)
    resolved = resolve(config, joining=joining, cuda=cuda)
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


def _has_cuda(nproc: int) -> bool:
    """Whether each rank has an accelerator of its own, asked without loading torch where there is none."""
    if not os.path.exists("/dev/nvidiactl"):
        return False
    import torch

    return torch.cuda.is_available() and torch.cuda.device_count() >= nproc


if __name__ == "__main__":
    raise SystemExit(main())

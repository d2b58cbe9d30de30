"""What ``shardlab.profile`` and ``shardlab.train`` do alike: become a control run, join a job, or start ranks."""

from __future__ import annotations

import os
from dataclasses import asdict

from shardlab.config import OutputConfig, RunConfig
from shardlab.errors import ExitCode
from shardlab.explain import explained
from shardlab.plan import Resolved, resolve
from shardlab.process import die_with
from shardlab.trainconfig import TrainConfig, resolve_training
from shardlab.world import World, is_joining


def control_argv() -> list[str] | None:
    """The flags of the run that this one is the control of, where it is one."""
    if "SHARDLAB_CONTROL" not in os.environ:
        return None
    from shardlab.launch import control

    request = control.requested()
    assert request is not None
    die_with(request.parent)
    return request.argv


def run(config: RunConfig, output: OutputConfig, argv: list[str], train: TrainConfig | None = None) -> int:
    """Measure what the flags say, with a model in training where there is ``train``. The exit code."""
    if output.explain is not None:
        print(explained(output.explain))
        return int(ExitCode.OK)
    joining = is_joining()
    world = World.from_env() if joining else None
    cuda = config.device == "auto" and has_cuda(world.local_world_size if world else config.nproc)
    resolved = resolve(config, joining=joining, cuda=cuda)
    if train is not None:
        train = resolve_training(train, resolved.config, world.world_size if world else config.nproc)
    if output.dry_run:
        return _dry_run(resolved, output, train)
    if joining:
        from shardlab import joined

        return joined.run_joined(resolved, output, argv, train)
    from shardlab import local

    return local.run_local(resolved, output, argv, train)


def _dry_run(resolved: Resolved, output: OutputConfig, train: TrainConfig | None) -> int:
    from shardlab.launch.spec import spec_of

    spec_of(resolved.config)
    for note in resolved.notes:
        print(f"Note: {note}")
    values = asdict(resolved.config) | (asdict(train) if train else {}) | asdict(output)
    for name, value in values.items():
        print(f"{name:20} {value}")
    return int(ExitCode.OK)


def has_cuda(nproc: int) -> bool:
    """Whether each rank has an accelerator of its own, asked without loading torch where there is none."""
    if not os.path.exists("/dev/nvidiactl"):
        return False
    import torch

    return torch.cuda.is_available() and torch.cuda.device_count() >= nproc

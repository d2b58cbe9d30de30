"""What training adds to a run: one frozen dataclass is the flags of ``shardlab.train`` and what ranks are told."""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from shardlab import plugins
from shardlab.config import RunConfig, flag
from shardlab.errors import UsageError

LEARNING_RATE = 1e-3
DEFAULTS = RunConfig(dataset="mnist", batch_size=64, warmup=0)
"""The flags that ``shardlab.train`` has in common with ``shardlab.profile``, where they are not given."""


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. The data path, the ranks and the epochs are those of :class:`RunConfig`."""

    framework: Annotated[
        str,
        arg(
            help="Who trains; auto is single for one rank and ddp for more.\n" + plugins.describe("framework")
        ),
    ] = "auto"
    model: Annotated[
        str,
        arg(help="cnn, or package.module:factory or file.py:factory: called without arguments, a module."),
    ] = "cnn"
    lr: Annotated[float, arg(help="Learning rate of AdamW, as it is: see --lr-scaling.")] = LEARNING_RATE
    lr_scaling: Annotated[
        Literal["none", "linear", "sqrt"],
        arg(help="The global batch grows with the ranks; multiply --lr by their number, its root, or by 1."),
    ] = "none"
    lr_decay: Annotated[float, arg(help="Factor of the learning rate after each epoch.")] = 0.7
    accumulation: Annotated[int, arg(help="Batches per optimiser step; gradients are their mean.")] = 1
    dropout: Annotated[bool, arg(help="The dropout of the cnn; --no-dropout for curves that compare.")] = True
    dtype: Annotated[Literal["float32", "float64"], arg(help="Of the model and its inputs.")] = "float32"
    eval_dataset: Annotated[
        str,
        arg(help="Counted once after each epoch, on all ranks; auto: the test split of mnist, else none."),
    ] = "auto"
    checkpoint: Annotated[
        str | None, arg(metavar="DIR", help="Where checkpoints go, after each epoch at least.")
    ] = None
    checkpoint_every: Annotated[
        int | None, arg(metavar="STEPS", help="Also after so many steps of an epoch.")
    ] = None
    resume: Annotated[
        str | None,
        arg(metavar="DIR", help="Go on from the latest checkpoint in this folder, or from this very one."),
    ] = None

    def __post_init__(self) -> None:
        for name in ("lr", "lr_decay"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{flag(name)} must be more than 0", getattr(self, name))
        for name in ("accumulation", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{flag(name)} must be at least 1", value)
        if self.checkpoint_every is not None and self.checkpoint is None:
            raise UsageError("--checkpoint-every needs a folder", None, cure="add --checkpoint DIR")

    def learning_rate(self, world_size: int) -> float:
        """The rate of the first epoch on ``world_size`` ranks.

        >>> TrainConfig(lr=0.25, lr_scaling="linear").learning_rate(4)
        1.0
        """
        power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[self.lr_scaling]
        return float(self.lr * world_size**power)


def resolve_training(train: TrainConfig, config: RunConfig, world_size: int) -> TrainConfig:
    """Without ``auto``. Raises UsageError for what does not fit together, before anything starts."""
    known = plugins.find("framework")
    name = train.framework
    if name == "auto":
        name = "single" if world_size == 1 else "ddp"
    if name not in known:
        raise UsageError("--framework must name a framework", name, ["auto", *known])
    if world_size > 1 and not known[name].fact("SEVERAL_RANKS", True):
        raise UsageError(f"--framework {name} trains one rank", world_size, cure="use --framework ddp")
    _refuse_misfit(known[name], config, world_size)
    for given in known[name].fact("REFUSES", {}):
        if getattr(train, given) != getattr(TrainConfig(), given):
            raise UsageError(
                f"--framework {name} cannot have {flag(given)} ({known[name].fact('REFUSES')[given]})",
                getattr(train, given), cure="use --framework accelerate or ddp",
            )  # fmt: skip
    if train.model != "cnn" and not plugins.is_reference(train.model):
        raise UsageError(
            "--model must name a model", train.model, ["cnn", "package.module:factory", "file.py:factory"]
        )
    if config.compute != "none":
        raise UsageError("--compute is for shardlab.profile: here the model computes", config.compute)
    if config.warmup:
        raise UsageError("--warmup is for shardlab.profile: every epoch trains", config.warmup)
    if config.repeats > 1 and train.checkpoint is not None:
        raise UsageError("--repeats cannot share a folder of checkpoints", config.repeats, [1])
    if config.tail == "keep" and train.checkpoint_every is not None and world_size > 1:
        raise UsageError(
            "--checkpoint-every needs ranks with equally many steps", "--tail keep", ["pad", "drop"],
            "leave --checkpoint-every out: there is a checkpoint after each epoch",
        )  # fmt: skip
    return _with(train, name, config)


def _refuse_misfit(framework: plugins.Plugin, config: RunConfig, world_size: int) -> None:
    """What the framework's file says of itself: packages it needs, tails that it can train on several ranks."""
    for module, cure in framework.fact("NEEDS", {}).items():
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"--framework {framework.name} needs {module}, which is an extra", "not installed", cure=cure
            )
    tails = framework.fact("TAILS", ("pad", "drop", "keep"))
    if world_size > 1 and config.tail not in tails:
        raise UsageError(
            f"--framework {framework.name} needs ranks with equally many steps", f"--tail {config.tail}", tails
        )


def _with(train: TrainConfig, framework: str, config: RunConfig) -> TrainConfig:
    evaluated = train.eval_dataset
    if evaluated == "auto":
        evaluated = f"{config.dataset}:test" if config.dataset in ("mnist", "fashion-mnist") else "none"
    return dataclasses.replace(train, framework=framework, eval_dataset=evaluated)

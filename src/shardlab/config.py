"""One frozen dataclass is the flags, the config and the first columns of ``runs.csv``."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from tyro.conf import arg

from shardlab import plugins
from shardlab.errors import UsageError

StartMethod = Literal["auto", "spawn", "fork", "forkserver"]
Tail = Literal["pad", "drop", "keep"]

_REFERENCE = "\npackage.module:factory or file.py:factory: your own"


@dataclass(frozen=True)
class RunConfig:
    """What is measured. Every flag is a column of runs.csv."""

    sampler: Annotated[
        str, arg(help="How samples reach a rank.\n" + plugins.describe("datapath") + _REFERENCE)
    ] = "distributed"
    store: Annotated[
        str,
        arg(help="Where the bytes live; auto is the sampler's own default.\n" + plugins.describe("store")),
    ] = "auto"
    dataset: Annotated[str, arg(help="What is read.\n" + plugins.describe("dataset") + _REFERENCE)] = (
        "synthetic:256MiB"
    )
    nproc: Annotated[
        int, arg(aliases=["--nproc-per-node", "--num-processes"], help="Ranks on this node.")
    ] = 2
    batch_size: Annotated[int, arg(help="Samples per rank and step.")] = 32
    workers: Annotated[int, arg(help="DataLoader worker processes per rank.")] = 0
    prefetch_factor: Annotated[int, arg(help="Batches each worker prepares ahead.")] = 2
    persistent_workers: Annotated[bool, arg(help="Keep workers alive between epochs.")] = False
    pin_memory: Annotated[bool, arg(help="Copy batches into page-locked memory (needs an accelerator).")] = (
        False
    )
    epochs: Annotated[int, arg(help="Timed epochs.")] = 1
    warmup: Annotated[int, arg(help="Epochs run first and not timed.")] = 1
    max_steps: Annotated[int | None, arg(metavar="INT", help="End each epoch after this many steps.")] = None
    repeats: Annotated[int, arg(help="Measure this many times, each in fresh processes; a row each.")] = 1
    tail: Annotated[
        Tail,
        arg(
            help="Last, incomplete round: pad repeats samples, drop leaves them out, keep gives ranks fewer."
        ),
    ] = "pad"
    even_batches: Annotated[
        bool, arg(help="Accelerate's spelling of the tail: --no-even-batches is --tail keep.")
    ] = True
    shuffle: Annotated[
        bool, arg(help="A new order each epoch; --no-shuffle lets the order itself be checked.")
    ] = True
    seed: Annotated[int, arg(help="Seed of the order and of the synthetic content.")] = 0
    compute: Annotated[str, arg(help="Work after each batch: none, a pause such as 5ms, or cnn.")] = "none"
    start_method: Annotated[
        StartMethod, arg(help="How ranks start; auto is spawn, or fork for --store inherited.")
    ] = "auto"
    worker_start_method: Annotated[
        StartMethod, arg(help="How DataLoader workers start; auto is what Python does by itself.")
    ] = "auto"
    device: Annotated[str, arg(help="auto, cpu or cuda.")] = "auto"
    data_dir: Annotated[
        str | None,
        arg(
            metavar="DIR",
            help="Where mnist and fashion-mnist lie or are downloaded; SHARDLAB_DATA, then ./data.",
        ),
    ] = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{flag(name)} must be at least {least}", value)
        compute_seconds(self.compute)
        if self.device not in ("auto", "cpu", "cuda"):
            raise UsageError("--device must be a known device", self.device, ["auto", "cpu", "cuda"])


@dataclass(frozen=True)
class OutputConfig:
    """What is done with the figures; not part of what is measured."""

    results: Annotated[str, arg(help="Folder of the CSV files.")] = "results"
    json: Annotated[bool, arg(help="Print one JSON object on stdout, all else on stderr.")] = False
    quiet: Annotated[bool, arg(help="No progress bar.")] = False
    timeout: Annotated[float, arg(help="Seconds after which sizing, run or control is ended.")] = 1800.0
    control: Annotated[
        bool, arg(help="Run the control; --no-control takes half the time and leaves copies unknown.")
    ] = True
    pss_timeline: Annotated[
        bool, arg(help="Read PSS of every process all the time: true peaks, and a slower run.")
    ] = False
    census: Annotated[
        bool, arg(help="Compare the content of all processes' memory too: census_copies, a proof of copies.")
    ] = False
    keep_ledger: Annotated[bool, arg(help="Keep every delivered index under RESULTS/ledger/.")] = False
    explain: Annotated[
        str | None, arg(metavar="NAME", help="Say what a number or a column means, and stop.")
    ] = None
    dry_run: Annotated[bool, arg(help="Check the flags, say what would run, and stop.")] = False

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise UsageError("--timeout must be more than 0 seconds", self.timeout)


_LEAST = {
    "nproc": 1,
    "batch_size": 1,
    "workers": 0,
    "prefetch_factor": 1,
    "epochs": 1,
    "warmup": 0,
    "max_steps": 1,
    "repeats": 1,
    "seed": 0,
}


def flag(field: str) -> str:
    """``batch_size`` is ``--batch-size``."""
    return "--" + field.replace("_", "-")


def compute_seconds(text: str) -> float | None:
    """Seconds of pause that ``--compute`` asks for; ``None`` for ``cnn``.

    >>> compute_seconds("none"), compute_seconds("5ms"), compute_seconds("cnn")
    (0.0, 0.005, None)
    """
    if text == "cnn":
        return None
    if text == "none":
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)ms", text)
    if match is None:
        raise UsageError("--compute must be a known kind of work", text, ["none", "5ms (any number)", "cnn"])
    return float(match[1]) / 1000


def argv_of(config: RunConfig) -> list[str]:
    """The command line that gives this config.

    >>> argv_of(RunConfig(sampler="ring", shuffle=False))
    ['--sampler', 'ring', '--no-shuffle']
    """
    words: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value == field.default:
            continue
        if isinstance(value, bool):
            words.append(flag(field.name) if value else flag(f"no_{field.name}"))
        else:
            words += [flag(field.name), str(value)]
    return words


def changed_flags(config: RunConfig) -> set[str]:
    """Names of the fields that were given a value other than their default."""
    return {
        field.name for field in dataclasses.fields(config) if getattr(config, field.name) != field.default
    }


def parse(description: str, argv: list[str] | None, prog: str) -> tuple[RunConfig, OutputConfig]:
    """The command line as values. Wrong flags exit with 2, as every command's do."""

    def both(
        run: tyro.conf.OmitArgPrefixes[RunConfig], output: tyro.conf.OmitArgPrefixes[OutputConfig]
    ) -> tuple[RunConfig, OutputConfig]:
        return run, output

    return tyro.cli(both, description=description, args=argv, prog=prog)

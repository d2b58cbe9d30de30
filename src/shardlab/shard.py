"""Write a dataset as shards on disk, to be read by --dataset FOLDER with one copy per node.

A write that was killed goes on where it was: give the same command again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from shardlab import plugins
from shardlab.dataset import DatasetSpec, open_dataset, supports_mapping
from shardlab.dataset._units import parse_bytes
from shardlab.ends import exit_code_of
from shardlab.errors import ExitCode, UsageError

DEFAULT_SHARD_BYTES = "64MiB"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ShardConfig:
    """What is written, and where to."""

    source: Annotated[
        Positional[str],
        arg(metavar="SOURCE", help="What is written: any --dataset.\n" + plugins.describe("dataset")),
    ]
    out: Annotated[Positional[str], arg(metavar="OUT", help="A new or empty folder, or an unfinished one.")]
    samples_per_shard: Annotated[
        int | None, arg(metavar="INT", help="Samples in each shard; by default as many as fit --shard-bytes.")
    ] = None
    shard_bytes: Annotated[str, arg(help="Size of a shard, at least one sample.")] = DEFAULT_SHARD_BYTES
    seed: Annotated[int, arg(help="Seed of synthetic content.")] = 0
    data_dir: Annotated[str | None, arg(metavar="DIR", help="Where mnist and fashion-mnist lie.")] = None
    quiet: Annotated[bool, arg(help="No progress bar.")] = False

    def __post_init__(self) -> None:
        if self.samples_per_shard is not None:
            if self.samples_per_shard < 1:
                raise UsageError("--samples-per-shard must be at least 1", self.samples_per_shard)
            if self.shard_bytes != DEFAULT_SHARD_BYTES:
                raise UsageError("--samples-per-shard and --shard-bytes exclude each other", self.shard_bytes)
        parse_bytes(self.shard_bytes, "--shard-bytes must be a number of bytes")
        if self.seed < 0:
            raise UsageError("--seed must be at least 0", self.seed)


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    return exit_code_of(lambda: _main(argv))


def _main(argv: list[str] | None) -> int:
    print(run(tyro.cli(ShardConfig, description=__doc__, args=argv, prog="python -m shardlab.shard")))
    return int(ExitCode.OK)


def run(config: ShardConfig) -> str:
    """Write the shards; returns one line that says what was written."""
    from shardlab.shards.writer import write

    spec = DatasetSpec(config.source, config.data_dir, config.seed)
    dataset = open_dataset(spec, mapped=supports_mapping(spec))
    shard_bytes = parse_bytes(config.shard_bytes, "--shard-bytes must be a number of bytes")
    with _progress(config.quiet) as bar:
        manifest = write(
            dataset, config.out, config.samples_per_shard, shard_bytes, _said(bar), config.source, config.seed
        )
    shards, size = len(manifest.shards), sum(shard.bytes for shard in manifest.shards)
    return f"{manifest.samples} samples in {shards} shards of {size} bytes in {config.out}"


def _said(bar: Progress | None) -> Progress:
    """As the bar, and a line where the first report is of samples that lay there already."""
    done_before = 0

    def progress(done: int, total: int) -> None:
        nonlocal done_before
        if not done_before and done > 1:
            print(f"Going on with an unfinished write: {done} samples were there", file=sys.stderr)
        done_before = done
        if bar is not None:
            bar(done, total)

    return progress


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress | None]:
    """A bar on stderr, where that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("samples", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


if __name__ == "__main__":
    raise SystemExit(main())

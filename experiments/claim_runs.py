"""What ``claims.py`` measures: memory held, runs under a limit, curves of training; rows without their answers."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from claim_rows import MIB, Row, difference_ratio
from commands import Ended, held_mib_by_rank, reads_by_rank, run, write_shards
from memory_limit import NoGroup, group
from shardlab.measure import pagecache

SHARD_BYTES = 4 * MIB
BORDER_SHARDS = 2  # a part begins and ends within a shard
GPU = "--device cuda"


@dataclass(frozen=True)
class Configuration:
    """Flags of a command, and what they are called. ``elsewhere`` says what shows it where it cannot run here."""

    name: str
    flags: str
    elsewhere: str = ""

    @property
    def ranks(self) -> int:
        """As ``--nproc`` has it."""
        words = shlex.split(self.flags)
        return int(words[words.index("--nproc") + 1]) if "--nproc" in words else 1


@dataclass
class Lab:
    """Where commands run: a folder that goes afterwards, datasets of so many MiB. Each configuration runs once."""

    folder: Path
    dataset_mib: int
    ran: dict[str, Ended] = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        """Images as arrays."""
        return f"synthetic:{self.dataset_mib}MiB:3x64x64"

    @property
    def larger(self) -> str:
        """Twice as many."""
        return f"synthetic:{2 * self.dataset_mib}MiB:3x64x64"

    @property
    def records(self) -> str:
        """A list that weighs about as much; building and sending it takes longer, so no more than 300k."""
        return f"records:{min(self.dataset_mib, 300)}k"

    @cached_property
    def shards(self) -> Path:
        """``dataset`` as shards on disk."""
        return write_shards(self.dataset, self.folder / "shards", SHARD_BYTES)

    @cached_property
    def larger_shards(self) -> Path:
        """``larger`` as shards on disk."""
        return write_shards(self.larger, self.folder / "larger-shards", SHARD_BYTES)

    def filled(self, flags: str) -> str:
        """The flags as the command gets them."""
        for name in ("dataset", "larger", "records", "shards", "larger_shards"):
            if f"{{{name}}}" in flags:
                flags = flags.replace(f"{{{name}}}", str(getattr(self, name)))
        return flags

    def evict(self, flags: str) -> None:
        """Send its shards out of memory: a page counts in the cgroup that brought it in, and here none has."""
        for name in ("shards", "larger_shards"):
            if f"{{{name}}}" in flags:
                for path in getattr(self, name).rglob("*"):
                    if path.is_file():
                        pagecache.evict(path)

    def published(self, flags: str) -> str:
        """The same without the names of temporary folders."""
        for name, source in (("shards", self.dataset), ("larger_shards", self.larger)):
            flags = flags.replace(f"{{{name}}}", f"SHARDS-OF-{source}")
        return self.filled(flags)

    def command(self, module: str, flags: str, prefix: tuple[str, ...] = ()) -> Ended:
        """Run it with results of its own; without a prefix only where it did not run before."""
        key = f"{module} {flags}"
        if prefix or key not in self.ran:
            self.ran[key] = run(module, self.filled(flags), self.folder / "results", prefix)
        return self.ran[key]


def blank(lab: Lab, claim: str, configuration: Configuration) -> Row:
    """A row before anything was measured."""
    name = f"{claim.partition(':')[0]} / {configuration.name}"
    return Row(name, claim, configuration.name, lab.published(configuration.flags), configuration.ranks)


def held(lab: Lab, claim: str, configurations: Sequence[Configuration]) -> Iterator[Row]:
    """Copies on the node, reads by rank, and how much of the dataset a rank holds."""
    for configuration in configurations:
        ended = lab.command("profile", configuration.flags)
        figures, mib = ended.ran, held_mib_by_rank(ended.said)
        size = figures["dataset_bytes"]
        each = max(mib) * MIB / size if mib else None
        yield replace(
            blank(lab, claim, configuration), copies=figures["copies"], copies_low=figures["copies_low"],
            copies_high=figures["copies_high"], reads_by_rank=reads_by_rank(figures),
            held_mib_by_rank=" ".join(f"{rank:.0f}" for rank in mib), held_ratio=each,
            border_ratio=BORDER_SHARDS * SHARD_BYTES / size, exit_code=ended.code,
            reason=figures["reason"] if figures["copies"] is None else "",
        )  # fmt: skip


def under_a_limit(lab: Lab, claim: str, configurations: Sequence[Configuration]) -> Iterator[Row]:
    """The first two without a limit, which is then halfway between their peaks; all under it."""
    free = []
    for configuration in configurations[:2]:
        unlimited = replace(configuration, name=f"{configuration.name} (no limit)")
        free.append(grouped(lab, blank(lab, claim, unlimited), configuration, None))
        yield free[-1]
    peaks = [row.peak_bytes for row in free if row.peak_bytes is not None and row.exit_code == 0]
    for configuration in configurations:
        row = blank(lab, claim, configuration)
        if len(peaks) < 2:
            yield replace(row, reason=free[0].reason or "no peak was measured to derive a limit from")
        else:
            yield grouped(lab, row, configuration, sum(peaks) // 2)


def grouped(lab: Lab, row: Row, configuration: Configuration, limit_bytes: int | None) -> Row:
    """Run in a cgroup, with what the kernel counted; a reason where none can be made."""
    lab.evict(configuration.flags)
    try:
        with group(limit_bytes) as made:
            ended = lab.command("profile", configuration.flags, made.prefix)
            used = made.used()
    except NoGroup as error:
        return replace(row, reason=str(error))
    return replace(
        row, limit_bytes=limit_bytes, peak_bytes=used.peak_bytes, oom_kills=used.oom_kills, exit_code=ended.code,
        reason="" if ended.code == 0 else last_line(ended.said),
    )  # fmt: skip


def trained(lab: Lab, claim: str, configurations: Sequence[Configuration]) -> Iterator[Row]:
    """The losses of a training, against the first one's; against nothing where that failed."""
    first: list[float] = []
    for configuration in configurations:
        row = blank(lab, claim, configuration)
        missing = "no accelerator here" if GPU in configuration.flags and not os.path.exists("/dev/nvidiactl") else ""
        if configuration.elsewhere or missing:
            yield replace(row, reason=configuration.elsewhere or missing)
            continue
        ended = lab.command("train", configuration.flags)
        losses = ended.losses if ended.code == 0 else []
        if configuration is configurations[0]:
            first = losses
        yield replace(
            row, exit_code=ended.code, losses=" ".join(f"{loss:.9g}" for loss in losses),
            loss_difference_ratio=difference_ratio(losses, first),
            reason="" if losses else last_line(ended.said),
        )  # fmt: skip


def last_line(said: str) -> str:
    """What a command said last."""
    return (said.strip().splitlines() or [""])[-1]

"""The job that ``shardlab.predict`` is asked about, as flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from tyro.conf import arg

from shardlab.config import flag
from shardlab.dataset._units import parse_bytes
from shardlab.errors import UsageError
from shardlab.predicting.room import available_bytes, built_in_bytes


class Limit(NamedTuple):
    """Memory of a node in bytes; ``built_in`` is what this machine has where it is what of that is available."""

    nbytes: int
    built_in: int | None = None


@dataclass(frozen=True)
class Question:
    """The job that is asked about, where it is not the small one."""

    nnodes: Annotated[int, arg(help="Nodes of the job, each with --nproc ranks.")] = 1
    limit: Annotated[
        str | None, arg(metavar="SIZE", help="Memory of a node, as 512GiB; by default what is available here now.")
    ] = None
    dataset_bytes: Annotated[
        str | None, arg(metavar="SIZE", help="Size of the job's dataset where --dataset is a smaller one like it.")
    ] = None
    other_store: Annotated[
        bool, arg(help="Measure --store shared too where the job does not fit; twice as long.")
    ] = True

    def __post_init__(self) -> None:
        if self.nnodes < 1:
            raise UsageError("--nnodes must be at least 1", self.nnodes)
        for name in ("limit", "dataset_bytes"):
            text = getattr(self, name)
            if text is not None and _bytes_of(text, name) <= 0:
                raise UsageError(f"{flag(name)} must be more than 0 bytes", text)

    def memory(self) -> Limit:
        """Memory of a node: what was said, or what a job may take on this machine now, before anything runs."""
        if self.limit:
            return Limit(_bytes_of(self.limit, "limit"))
        built_in, available = built_in_bytes(), available_bytes()
        return Limit(built_in if available is None else min(available, built_in), built_in)

    @property
    def argv(self) -> list[str]:
        """The flags that ask this again; whether another store is measured is left to the default."""
        words = ["--nnodes", str(self.nnodes)] if self.nnodes > 1 else []
        for name in ("limit", "dataset_bytes"):
            if getattr(self, name) is not None:
                words += [flag(name), getattr(self, name)]
        return words

    @property
    def data_bytes(self) -> int | None:
        """Size of the job's dataset; None where it is that of ``--dataset``."""
        return _bytes_of(self.dataset_bytes, "dataset_bytes") if self.dataset_bytes else None


def _bytes_of(text: str, name: str) -> int:
    return parse_bytes(text, f"{flag(name)} must be a number of bytes")

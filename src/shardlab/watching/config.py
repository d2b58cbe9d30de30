"""What ``shardlab.watch`` is asked, as flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import UseAppendAction, arg

from shardlab.dataset._units import parse_bytes
from shardlab.errors import UsageError


@dataclass(frozen=True)
class WatchConfig:
    """Whom to watch, when to look at content, and where to put what is found."""

    pid: Annotated[
        UseAppendAction[tuple[int, ...]],
        arg(help="Watch a running job: this process and all below it. May be given again."),
    ] = ()
    dataset_bytes: Annotated[
        str | None, arg(metavar="SIZE", help="Size of one copy, as 500MiB: then copies are counted too.")
    ] = None
    census: Annotated[
        Literal["auto", "never"],
        arg(help="When to compare content: auto is once memory has settled and when it has grown since."),
    ] = "auto"
    census_at: Annotated[
        UseAppendAction[tuple[float, ...]],
        arg(metavar="SECONDS", help="Compare content at this time too. May be given again."),
    ] = ()
    census_seconds: Annotated[
        float, arg(metavar="SECONDS", help="What one census may take: a larger job is sampled.")
    ] = 30.0
    for_seconds: Annotated[
        float | None, arg(metavar="SECONDS", help="With --pid: end the watch after this long.")
    ] = None
    results: Annotated[str, arg(help="Folder for memory.csv; none writes no rows.")] = "results"
    live: Annotated[bool, arg(help="Show the processes while they run, where stderr is a terminal.")] = True
    json: Annotated[
        bool, arg(help="One JSON object on stdout at the end; what the job prints there goes to stderr.")
    ] = False
    quiet: Annotated[bool, arg(help="Say nothing before the end.")] = False

    def __post_init__(self) -> None:
        if self.size is not None and self.size <= 0:
            raise UsageError("--dataset-bytes must be more than 0 bytes", self.dataset_bytes)
        if self.census_seconds <= 0:
            raise UsageError("--census-seconds must be more than 0", self.census_seconds)
        if self.for_seconds is not None and not self.pid:
            raise UsageError("--for-seconds is for a job that runs already", self.for_seconds, cure="give --pid P")

    @property
    def size(self) -> int | None:
        """Bytes of one copy."""
        if self.dataset_bytes is None:
            return None
        return parse_bytes(self.dataset_bytes, "--dataset-bytes must be a number of bytes")

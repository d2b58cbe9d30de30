"""What the launcher tells its ranks: one file, ``job.json``, in the run's own folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardlab import plugins
from shardlab.config import RunConfig
from shardlab.dataset import DatasetFacts, DatasetSpec
from shardlab.trainconfig import TrainConfig

LIFELINE = "lifeline"  # a named pipe whose writer is the launcher: it ends when the launcher does


@dataclass(frozen=True)
class Control:
    """A run that measures what everything but the dataset costs: stand-ins of one sample in its place.

    ``samples`` stand-ins, repeated up to ``length`` samples; the ranks are held after ``steps - 1`` steps.
    ``on_disk``: the job's dataset is a folder that holds the stand-ins already.
    """

    samples: int
    length: int
    steps: int
    on_disk: bool = False


@dataclass(frozen=True)
class Job:
    """A resolved run. ``run_dir`` is its own and goes with it; ``results`` is None where no rows are kept.

    With ``train`` a model is trained; else the batches are read and no more. ``repeat`` counts runs of the same
    configuration, in a ``comparison`` of several where it is part of one. ``pss_timeline``: the monitor reads PSS
    of every process all the time.
    """

    run_id: str
    run_dir: str
    config: RunConfig
    spec: DatasetSpec
    facts: DatasetFacts
    control: Control | None = None
    results: str | None = None
    timeout_s: float = 1800.0
    joined: bool = False
    train: TrainConfig | None = None
    comparison: str | None = None
    repeat: int = 0
    pss_timeline: bool = False
    census: bool = False

    @property
    def folder(self) -> Path:
        """``run_dir`` as a path."""
        return Path(self.run_dir)

    @property
    def knows_indices(self) -> bool:
        """Whether an index names one sample on all ranks.

        That of a stream is the place in the stream of the process that reads it. Workers, the readers of a ring
        among them, and a path that is not ours may each read another part of the stream, and nobody knows
        whether the parts overlap.
        """
        known = self.config.sampler in plugins.find("datapath")
        one_stream = known and self.config.workers <= (1 if self.config.sampler == "ring" else 0)
        return not self.facts.iterable or one_stream

    def save(self) -> None:
        """Write ``job.json``."""
        (self.folder / "job.json").write_bytes(msgspec.json.encode(self))

    @staticmethod
    def load(run_dir: Path) -> Job:
        """Read ``job.json``."""
        return msgspec.json.decode((run_dir / "job.json").read_bytes(), type=Job)

"""The dataset of a job as ``--store`` holds it; in a control run, stand-ins of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset, default_collate

from shardlab import dataset, plugins
from shardlab.engine.job import Job
from shardlab.store import NodeShare, ReadCounter, Store
from shardlab.world import World

Collate = Callable[[list[Any]], Any]


def open_store(job: Job, world: World, inherited: Any) -> Store:
    """The dataset in this rank, reads counted."""
    mapped = None
    if (job.control is None or job.control.on_disk) and dataset.supports_mapping(job.spec):
        mapped = lambda: dataset.open_dataset(job.spec, mapped=True)  # noqa: E731
    share = NodeShare(
        world=world,
        run_dir=job.folder,
        source=lambda: source(job),
        mapped=mapped,
        inherited=inherited,
        samples=samples_of(job),
        sample=job.facts.sample,
        files=job.facts.files,
        timeout_s=job.timeout_s,
    )
    raw = plugins.find("store")[job.config.store].load().open(share)
    counter = ReadCounter(job.folder / f"reads-{world.rank}")
    return Store(raw, counter, iterable=job.facts.iterable)


def source(job: Job) -> Any:
    """The dataset, built in this process."""
    if job.control is None or job.control.on_disk:
        return dataset.open_dataset(job.spec)
    dataset.import_for(job.spec)  # a control has to carry what the user's module imports
    stand_ins = dataset.stand_in(job.facts, job.control.samples)
    # A model needs the pairs that the user's function makes; where batches are only read, any batch will do.
    collate = job.facts.import_collate() if job.train is not None else None
    if job.facts.iterable:
        return stand_ins if collate is None else CollatedStream(stand_ins, collate)
    return Repeated(stand_ins, job.control.length, collate)


def samples_of(job: Job) -> int | None:
    """How many samples the ranks believe there are."""
    if job.control is None:
        return job.facts.samples
    return job.control.samples if job.control.on_disk else job.control.length


def collate_what_collates(samples: list[Any]) -> Any:
    """As torch's default; a list of the samples where only the dataset's own collate function knows better."""
    try:
        return default_collate(samples)
    except TypeError:
        return samples


class Repeated(Dataset[Any]):
    """A few samples that pose as many, collated by ``collate`` or as torch does."""

    def __init__(self, samples: Any, length: int, collate: Collate | None = None) -> None:
        self.samples = samples
        self.length = length
        self.collate_fn = collate or collate_what_collates

    @property
    def wraps(self) -> Any:
        """The samples themselves; None where a batch of them is more than stacked rows."""
        return self.samples if self.collate_fn is collate_what_collates else None

    @property
    def period(self) -> int:
        """After how many samples they repeat."""
        return len(self.samples)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


class CollatedStream(IterableDataset[Any]):
    """A stream with the collate function of another."""

    def __init__(self, samples: Any, collate: Collate) -> None:
        self.samples = samples
        self.collate_fn = collate

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)

"""What ``copies_by_start.py`` runs: datasets, stores, ranks, and how workers start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

DATASETS = {"array": "synthetic:256MiB:3x64x64", "list": "records:200k"}
BATCH = {"array": 32, "list": 256}
STORES = ("private", "inherited", "shared", "mmap")
RANKS = (1, 2, 4)
METHODS = ("fork", "forkserver", "spawn")
WORKERS, MORE_WORKERS = 2, 4
NO_WORKERS = "no workers"


@dataclass(frozen=True)
class Case:
    """A run; ``method`` is how workers start, empty where there are none, of which each rank has ``each``."""

    kind: str
    store: str
    ranks: int
    method: str = ""
    each: int = 0

    @property
    def name(self) -> str:
        """For the screen, and the key of the row."""
        return f"{self.kind}, {self.store}, {self.ranks} rank{'s'[: self.ranks - 1]}, {self.workers}"

    @property
    def workers(self) -> str:
        """Of each rank."""
        return f"{self.each} workers by {self.method}" if self.method else NO_WORKERS

    @property
    def flags(self) -> str:
        """For ``shardlab.profile``."""
        flags = (
            f"--sampler distributed --store {self.store} --nproc {self.ranks} --warmup 0 "
            f"--dataset {DATASETS[self.kind]} --batch-size {BATCH[self.kind]}"
        )
        return f"{flags} --workers {self.each} --worker-start-method {self.method}" if self.method else flags


def all_cases() -> Iterator[Case]:
    """Everything: with --full."""
    for kind, store, ranks in product(DATASETS, STORES, RANKS):
        yield Case(kind, store, ranks)
        for method, each in product(METHODS, (WORKERS, MORE_WORKERS)):
            yield Case(kind, store, ranks, method, each)


def few_cases() -> Iterator[Case]:
    """Arrays in each store, by ranks and by how workers start; of lists those that differ from arrays."""
    for store in STORES:
        for ranks in RANKS:
            yield Case("array", store, ranks)
        for method in METHODS:
            yield Case("array", store, 2, method, WORKERS)
    for ranks in RANKS:
        yield Case("list", "private", ranks)
    for method in METHODS:
        yield Case("list", "private", 2, method, WORKERS)
    for store, method in product(("inherited", "shared"), ("fork", "spawn")):
        yield Case("list", store, 2, method, WORKERS)
    yield Case("list", "inherited", 2)

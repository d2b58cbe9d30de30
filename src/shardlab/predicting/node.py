"""One node of a job in the few numbers that its memory is linear in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardlab.config import RunConfig


@dataclass(frozen=True)
class Data:
    """A dataset in figures: ``nbytes`` of one copy, ``sample_bytes`` of one sample in a batch.

    ``samples`` is None where it has no length. ``objects``: it is made of Python objects. ``in_files``: a store that
    maps files finds it in its own. ``moved``: its tensors go to ``/dev/shm`` when a rank hands it to workers.
    """

    nbytes: int
    samples: int | None
    sample_bytes: float
    objects: bool = False
    in_files: bool = False
    moved: bool = False

    def grown(self, nbytes: int) -> Data:
        """The same of another size, with as many samples more or less.

        >>> Data(100, 20, 5.0).grown(300) == Data(300, 60, 5.0)
        True
        """
        samples = self.samples
        if samples is not None and self.nbytes:
            samples = max(1, round(samples * nbytes / self.nbytes))
        return replace(self, nbytes=nbytes, samples=samples)


@dataclass(frozen=True)
class Node:
    """Processes and bytes of one node.

    ``workers`` are all processes of the node that read for its ranks. ``waiting_bytes`` are batches that may lie
    ready, beyond the one that each process works on; ``exchanged_bytes`` lie in a ring, or are sent to ranks that
    keep a slice of them. ``data_bytes`` is one copy, or the node's part of one. Each of the processes that read does
    so with ``share`` of the samples in each of the ``rounds`` that it lives, epochs, and where it was forked from
    the one that built them it makes those its own; ``forked_ranks`` and ``forked_workers`` say which were.
    ``page_cache_bytes`` of the data are clean pages of a file, which the kernel may drop; ``in_files``: they were
    there before, and no rank builds them.
    """

    ranks: int
    workers: int = 0
    waiting_bytes: float = 0.0
    exchanged_bytes: float = 0.0
    data_bytes: float = 0.0
    share: float = 1.0
    rounds: int = 1
    forked_ranks: bool = False
    forked_workers: bool = False
    page_cache_bytes: float = 0.0
    in_files: bool = False

    @property
    def processes(self) -> int:
        """Launcher, multiprocessing's resource tracker, ranks and workers."""
        return 2 + self.ranks + self.workers

    @property
    def name(self) -> str:
        """``2 ranks, 4 workers``."""
        words = [f"{self.ranks} rank{'s' * (self.ranks > 1)}"]
        if self.workers:
            words.append(f"{self.workers} worker{'s' * (self.workers > 1)}")
        return ", ".join(words)


def node_of(config: RunConfig, data: Data, *, nnodes: int = 1, ring_slots: int = 0) -> Node:
    """A node of the resolved ``config`` on ``nnodes`` such nodes; ``ring_slots`` is how many slots its ring has."""
    world = nnodes * config.nproc
    whole = float("inf") if data.samples is None else -(-data.samples // (world * config.batch_size))
    steps = whole if config.max_steps is None else min(whole, config.max_steps)
    data_bytes = data.nbytes / nnodes if config.sampler == "sharded" else data.nbytes
    node = Node(
        ranks=config.nproc,
        data_bytes=data_bytes,
        share=_share(config, world) * _part_read(config, steps, whole),
        rounds=config.warmup + config.epochs if _stays(config) else 1,
        forked_ranks=config.store == "inherited",
        forked_workers=config.worker_start_method == "fork",
        page_cache_bytes=data_bytes if config.store == "mmap" else 0.0,
        in_files=config.store == "mmap" and data.in_files,
    )
    batch = config.batch_size * data.sample_bytes
    if config.sampler == "ring":  # its readers are the node's, and a slot has a batch for each rank
        readers = max(1, config.workers)
        return replace(node, workers=readers, exchanged_bytes=ring_slots * config.nproc * batch)
    exchanged = 0.0
    if config.sampler == "accelerate":  # the first rank reads for all of the world, and sends each all of it
        steps, exchanged = steps * world, config.nproc * world * batch
    waiting = config.nproc * _waiting(config, steps) * batch
    workers = config.nproc * config.workers  # of all ranks, also where the first alone is read from
    return replace(node, workers=workers, waiting_bytes=waiting, exchanged_bytes=exchanged)


def shm_bytes(config: RunConfig, data: Data) -> float:
    """What DataLoader workers may make a node need of ``/dev/shm``: the dataset, and batches on their way; in bytes.

    A ring and a shared store lie in memory files, which no such file system limits.
    """
    if config.sampler == "ring" or not config.workers:
        return 0.0
    return dataset_shm_bytes(config, data) + batches_shm_bytes(config, data)


def dataset_shm_bytes(config: RunConfig, data: Data) -> float:
    """What torch moves there when ranks hand their own tensors to workers that were not forked from them."""
    spawned = config.sampler != "ring" and config.workers and config.worker_start_method != "fork"
    return config.nproc * data.nbytes if data.moved and spawned and config.store == "private" else 0.0


def batches_shm_bytes(config: RunConfig, data: Data) -> float:
    """What batches on their way may occupy there."""
    batches = config.nproc * (config.workers * config.prefetch_factor + 1)
    return batches * config.batch_size * data.sample_bytes


def _waiting(config: RunConfig, steps: float) -> float:
    """Batches that one DataLoader may have ready beyond those that its workers make."""
    return max(0.0, min(config.workers * config.prefetch_factor, steps) - config.workers)


def _share(config: RunConfig, world: int) -> float:
    readers = max(1, config.workers)
    if config.sampler in ("ring", "accelerate"):
        return 1 / readers
    return 1 / (world * readers)


def _part_read(config: RunConfig, steps: float, whole: float) -> float:
    """Which part of its samples a process reads where ``--max-steps`` ends the epoch: workers are ahead then."""
    return 1.0 if steps >= whole else min(1.0, (steps + config.workers * config.prefetch_factor) / whole)


def _stays(config: RunConfig) -> bool:
    """Whether what reads is the same process in all epochs."""
    return not config.workers or config.persistent_workers or config.sampler == "ring"

"""From what the user named to what will run: defaults filled in, misfits refused, idle flags said aloud."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from dataclasses import dataclass
from typing import cast

from shardlab import plugins
from shardlab.config import RunConfig, StartMethod, Tail, changed_flags, flag
from shardlab.errors import UsageError

USER_PATH_STORES = ("private", "inherited", "shared", "mmap")


@dataclass(frozen=True)
class Plan:
    """All that a data path has to know about the run besides its store and its rank.

    ``samples`` is None where the dataset has no length. ``batch_size`` is per rank.
    """

    samples: int | None
    batch_size: int
    tail: Tail = "pad"
    shuffle: bool = True
    seed: int = 0
    workers: int = 0
    prefetch_factor: int = 2
    persistent_workers: bool = False
    pin_memory: bool = False
    worker_start_method: str = "fork"
    max_steps: int | None = None
    device: str = "cpu"

    @classmethod
    def of(cls, config: RunConfig, samples: int | None) -> Plan:
        """The plan that a resolved config asks for."""
        names = {field.name for field in dataclasses.fields(cls)} - {"samples"}
        return cls(samples=samples, **{name: getattr(config, name) for name in names})


@dataclass(frozen=True)
class Resolved:
    """A config without ``auto`` in it, and what the user should be told about it."""

    config: RunConfig
    notes: tuple[str, ...]


def resolve(config: RunConfig, *, joining: bool = False, cuda: bool = False) -> Resolved:
    """Fill in the defaults that depend on other flags. Raises UsageError for what does not fit together."""
    path = path_plugin(config.sampler)
    store = _store(config, path)
    tail = _tail(config, path)
    if store == "inherited" and joining:
        raise UsageError(
            "--store inherited needs ranks forked by shardlab itself",
            "ranks of another launcher",
            cure="start with --nproc instead, or use --store shared",
        )
    start = config.start_method
    if start == "auto":
        start = "fork" if store == "inherited" else "spawn"
    if store == "inherited" and start != "fork":
        raise UsageError(
            "--store inherited needs --start-method fork", start, ["fork"], "leave --start-method out"
        )
    device = config.device
    if device == "auto":
        device = "cuda" if cuda else "cpu"
    workers_start = config.worker_start_method
    if workers_start == "auto":
        workers_start = cast(StartMethod, multiprocessing.get_context().get_start_method())
    resolved = dataclasses.replace(
        config, store=store, tail=tail, start_method=start, worker_start_method=workers_start, device=device
    )
    return Resolved(resolved, tuple(_idle_flags(config, path, device, joining)))


def path_plugin(sampler: str) -> plugins.Plugin | None:
    """The data path's own description; ``None`` for a user's ``package.module:factory``."""
    known = plugins.find("datapath")
    if sampler in known:
        return known[sampler]
    if plugins.is_reference(sampler):
        file = sampler.rpartition(":")[0]
        if file.endswith(".py") and not os.path.isfile(file):
            raise UsageError("--sampler must name a file that exists", file)
        return None
    raise UsageError(
        "--sampler must name a data path", sampler, [*known, "package.module:factory", "file.py:factory"]
    )


def _store(config: RunConfig, path: plugins.Plugin | None) -> str:
    fitting = path.fact("STORES") if path else USER_PATH_STORES
    if config.store == "auto":
        return str(fitting[0])
    known = plugins.find("store")
    if config.store not in known:
        raise UsageError("--store must name a store", config.store, ["auto", *known])
    if config.store not in fitting:
        reason = path.fact("STORE_REASONS", {}).get(config.store, "") if path else "any rank of it may read"
        raise UsageError(
            f"--store must fit --sampler {config.sampler}" + (f" ({reason})" if reason else ""),
            config.store,
            fitting,
            f"use --store {'shared' if 'shared' in fitting else fitting[0]}",
        )
    return config.store


def _tail(config: RunConfig, path: plugins.Plugin | None) -> Tail:
    ignored = path is not None and "even_batches" in path.fact("IGNORES", {})
    if not config.even_batches and not ignored and config.tail == "drop":
        raise UsageError(
            "--no-even-batches and --tail drop contradict each other", config.tail, ["pad", "keep"]
        )
    tail: Tail = "keep" if not config.even_batches and not ignored else config.tail
    fitting = path.fact("TAILS") if path else ("pad", "drop", "keep")
    if tail not in fitting:
        raise UsageError(f"--tail must be one that --sampler {config.sampler} can do", tail, fitting)
    return tail


def _idle_flags(config: RunConfig, path: plugins.Plugin | None, device: str, joining: bool) -> list[str]:
    """A line for each flag that was given and changes nothing on this path."""
    idle = dict(path.fact("IGNORES", {})) if path else {}
    if config.workers == 0:
        why = "there are no workers (--workers 0)"
        idle |= {"prefetch_factor": why, "persistent_workers": why, "worker_start_method": why}
    if joining:
        idle |= dict.fromkeys(("nproc", "start_method"), "another launcher started the ranks")
    if config.dataset not in ("mnist", "fashion-mnist"):
        idle["data_dir"] = "only mnist and fashion-mnist lie there"
    if device == "cpu":
        idle["pin_memory"] = "nothing is copied to an accelerator"
    return [
        f"{flag(name)} has no effect here: {idle[name]}"
        for name in sorted(changed_flags(config) & idle.keys())
    ]

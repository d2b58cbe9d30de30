"""The small runs that are made, the two phases they are fitted in, and what a job of any size needs by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardlab.config import RunConfig
from shardlab.predicting.fit import Fit, fit, fit_data, fit_excess
from shardlab.predicting.node import Data, Node
from shardlab.predicting.parts import Interval, Peak

FEW_BATCHES, MANY_BATCHES = 1, 8  # prefetch factors of the run that tells waiting batches from workers

SHORT_EPOCH = 8  # the epoch is so many times as long as that of the run that reads a part


class Reading(NamedTuple):
    """What one run held, and its peaks while ranks built and while they were fed, in bytes.

    Held is what all had, program files apart, when they waited before their last step. Of a control the peak while
    it builds is None, and so is the other unless data is sent to workers: with hardly any data the end of a run,
    when libraries are unloaded, is its peak.
    """

    node: Node
    held_bytes: float
    building_bytes: float | None = None
    feeding_bytes: float | None = None

    @property
    def peak_bytes(self) -> float:
        """The largest."""
        return max(self.building_bytes or 0.0, self.feeding_bytes or 0.0, self.held_bytes)


@dataclass(frozen=True)
class Forecast:
    """What a node needs at its fullest moment, in which phase that is, and what each part of it costs (bytes)."""

    node: Node
    needs: Interval
    phase: str
    parts: dict[str, float]

    @property
    def data_bytes(self) -> float:
        """All parts that grow with the dataset."""
        return _of_data(self.parts)


@dataclass(frozen=True)
class Model:
    """A fit for each phase: while the ranks build what they read from, and while they are fed."""

    building: Fit
    feeding: Fit

    def forecast(self, node: Node) -> Forecast:
        """The phase that needs more, with the bounds of both: neither may be passed."""
        phases = {"building": self.building, "feeding": self.feeding}
        nodes = {"building": _before_feeding(node), "feeding": node}
        needs = {name: _judged(phase, nodes[name], name) for name, phase in phases.items()}
        fuller = max(needs, key=lambda name: needs[name].value)
        bounds = Interval(
            needs[fuller].value,
            max(each.low for each in needs.values()),
            max(each.high for each in needs.values()),
        )
        return Forecast(node, bounds, fuller, _judged_parts(phases[fuller], nodes[fuller], fuller))


def _judged(phase: Fit, node: Node, name: str) -> Interval:
    """What such a node has to have: pages of a file that can be dropped do not count, a copy it is made from does."""
    if _has_no_copy(node, name):
        return phase.predict(replace(node, data_bytes=0.0))
    dropped = min(node.page_cache_bytes, _of_data(phase.parts(node)))
    return Interval(*(max(0.0, bound - dropped) for bound in phase.predict(node)))


def _judged_parts(phase: Fit, node: Node, name: str) -> dict[str, float]:
    """The same, part by part."""
    if _has_no_copy(node, name):
        return phase.parts(replace(node, data_bytes=0.0))
    parts = phase.parts(node)
    data = _of_data(parts)
    left = 1 - min(node.page_cache_bytes, data) / data if data else 1.0
    return {part: cost * left if part.startswith("data") else cost for part, cost in parts.items()}


def _has_no_copy(node: Node, phase: str) -> bool:
    """Whether all of the data are pages of a file: it lay there before, or was written there."""
    return node.page_cache_bytes > 0 and (phase == "feeding" or node.in_files)


@dataclass(frozen=True)
class Check:
    """A run that was left out, and what the others say of it (bytes)."""

    node: Node
    predicted: Interval
    measured_bytes: float

    @property
    def error_ratio(self) -> float:
        """0.05 where the prediction is 5 % too large."""
        return self.predicted.value / self.measured_bytes - 1


def model_of(readings: Sequence[Reading], *, objects: bool) -> Model:
    """Fit what is held, exactly known, and to that what is more while feeding; then what the data costs to build."""
    held = fit([Peak(_at_hold(each.node), each.held_bytes) for each in readings], objects=objects)
    more = [
        Peak(replace(each.node, exchanged_bytes=0.0), max(0.0, each.feeding_bytes - each.held_bytes))
        for each in readings
        if each.feeding_bytes is not None
    ]
    of_data = len(more) > sum(each.building_bytes is not None for each in readings)
    built = [
        Peak(_before_feeding(each.node), each.building_bytes)
        for each in readings
        if each.building_bytes is not None
    ]
    feeding = fit_excess(more, held, of_data=of_data)
    return Model(fit_data(built, feeding), feeding)


def check_of(readings: Sequence[Reading], *, objects: bool) -> Check:
    """Leave out the run with the most memory, with its control, and predict it from the others."""
    left_out = max(readings, key=lambda reading: reading.peak_bytes)
    size = _processes(left_out.node)
    others = [reading for reading in readings if _processes(reading.node) != size]
    whole = replace(left_out.node, page_cache_bytes=0.0)  # the pages of files are in what was measured
    needs = model_of(others, objects=objects).forecast(whole).needs
    return Check(left_out.node, needs, left_out.peak_bytes)


def small_runs(config: RunConfig, data: Data | None = None) -> list[RunConfig]:
    """The runs to fit to: up to 3 ranks and 2 workers of each, and only what the job itself has.

    ::

        ranks, workers, prefetch     no workers: 1 0, 2 0, 3 0     workers: 1 1 p, 2 1 p, 1 2 p, 2 2 p, 1 1 q

    With one worker of each rank 1 2 p is made as well: a rank and its worker could not be told apart. Forked
    processes of a large job read, and so copy, a small part of the objects each: for a dataset of objects one more
    run ends its epochs early, but not before workers are there.
    """
    base = replace(config, warmup=1, epochs=1, repeats=1, max_steps=None)
    ranks = range(1, min(config.nproc, 2 if config.workers else 3) + 1)
    workers = range(1, min(config.workers, 2) + 1) if config.workers else range(1)
    runs = [replace(base, nproc=rank, workers=each) for each in workers for rank in ranks]
    if config.workers == 1:
        runs.append(replace(base, nproc=1, workers=2))
    if config.workers and config.sampler != "ring":
        other = FEW_BATCHES if config.prefetch_factor > 2 else MANY_BATCHES
        runs.append(replace(base, nproc=1, workers=1, prefetch_factor=other))
    forks = config.worker_start_method == "fork" if config.workers else config.store == "inherited"
    if data is not None and data.objects and forks and data.samples:
        steps = data.samples // config.batch_size // SHORT_EPOCH
        runs.append(replace(base, nproc=1, workers=max(workers), max_steps=max(2, steps)))
    return runs


def _of_data(parts: dict[str, float]) -> float:
    return sum(cost for part, cost in parts.items() if part.startswith("data"))


def _at_hold(node: Node) -> Node:
    """The node before the last step: no batch waits."""
    return replace(node, waiting_bytes=0.0)


def _before_feeding(node: Node) -> Node:
    """The node while its ranks build: nothing is read yet."""
    return replace(node, workers=0, waiting_bytes=0.0, exchanged_bytes=0.0)


def _processes(node: Node) -> tuple[int, int]:
    return node.ranks, node.workers

"""What a forecast means, in words and in the lines of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardlab.predicting.advice import Change, verdict_of
from shardlab.predicting.model import Check, Forecast
from shardlab.predicting.parts import Interval

LARGE_SHARE = 0.3  # of what a node needs: a part from here on is named as the cause
_LABELS = {
    "base": "launcher, and what all processes share",
    "rank": "a rank",
    "worker": "a worker",
    "waiting": "a batch that waits",
    "exchanged": "batches for all ranks, of a rank",
    "data once": "the dataset, once",
    "data per rank": "the dataset, in a rank",
    "data per worker": "the dataset, in a worker",
}


class Line(NamedTuple):
    """A line of the table: ``each`` and ``total`` in bytes; ``times`` times ``each`` is ``total``."""

    label: str
    each: float
    times: float
    total: float


def size(nbytes: float, unit: str | None = None) -> str:
    """Bytes as people say them.

    >>> size(310 * 2**30), size(1536 * 2**20), size(200 * 2**20)
    ('310 GiB', '1.50 GiB', '200 MiB')
    """
    unit = unit or unit_of(nbytes)
    value = nbytes / 2 ** {"MiB": 20, "GiB": 30}[unit]
    return f"{value:,.2f} {unit}" if unit == "GiB" and value < 10 else f"{value:,.0f} {unit}"


def unit_of(nbytes: float) -> str:
    """GiB from 1 on, MiB below."""
    return "GiB" if nbytes >= 1 << 30 else "MiB"


def span(needs: Interval) -> str:
    """``310 GiB (295 to 325)``, all three in the unit of the first."""
    unit = unit_of(needs.value)
    low, high = (size(bound, unit).removesuffix(f" {unit}") for bound in (needs.low, needs.high))
    return f"{size(needs.value)} ({low} to {high})"


def lines(forecast: Forecast, batch_bytes: float) -> list[Line]:
    """What each part costs at the fullest moment; parts that cost nothing are left out."""
    node = forecast.node
    how_often = {
        "rank": node.ranks, "worker": node.workers, "exchanged": node.ranks, "data per rank": node.ranks,
        "data per worker": node.workers, "waiting": node.waiting_bytes / batch_bytes if batch_bytes else 0,
    }  # fmt: skip
    listed = []
    for part, label in _LABELS.items():
        total = forecast.parts.get(part, 0.0)
        if total > 0:
            times = how_often.get(part, 1.0) or 1.0
            listed.append(Line(label, total / times, times, total))
    return listed


def verdict(forecast: Forecast, limit_bytes: float, nnodes: int = 1, built_in: int | None = None) -> str:
    """Whether it fits, in one sentence. ``built_in`` is what this machine has, where the limit is what is left."""
    what = "A node" if nnodes == 1 else f"Each of the {nnodes} nodes"
    needed, limit = span(forecast.needs), size(limit_bytes)
    if built_in is not None:
        limit += f" available here now (of {size(built_in)})"
    said, cached = verdict_of(forecast.needs, limit_bytes), page_cache(forecast.node.page_cache_bytes)
    if said == "does not fit":
        return f"{what} needs {needed}{cached} and has {limit}: it does not fit."
    ends = "it fits." if said == "fits" else "it may not fit, the limit lies within the interval."
    return f"{what} needs {needed} of {limit}{cached.removesuffix(',')}: {ends}"


def page_cache(nbytes: float) -> str:
    """What comes on top for a store that maps files; nothing for others."""
    return f", and {size(nbytes)} of page cache to run at full speed," if nbytes else ""


def cause(forecast: Forecast) -> Iterator[str]:
    """The part that is most of it, where one is."""
    needed, node = forecast.needs.value, forecast.node
    if needed <= 0:
        return
    copies = forecast.data_bytes / node.data_bytes if node.data_bytes else 0.0
    bare = " without data" if node.data_bytes else ""
    shares = {
        f"{copies:.1f} copies of the dataset are": forecast.data_bytes,
        f"{node.ranks} ranks{bare} are": forecast.parts["rank"],
        f"{node.workers} workers{bare} are": forecast.parts["worker"],
        "batches that wait are": forecast.parts["waiting"],
    }
    words, most = max(shares.items(), key=lambda item: item[1])
    if most >= LARGE_SHARE * needed:
        yield f"{words} {most / needed:.0%} of it."


def cures(found: Sequence[Change], limit_bytes: float) -> Iterator[str]:
    """The changes with which it fits, as the model has it."""
    for change in found:
        yield f"With {change.flags} it needs {span(change.needs)} and fits."
    if not found:
        yield f"Fewer workers, ranks or batches in flight alone do not bring it below {size(limit_bytes)}."


def other_store(store: str, needs: Interval, limit_bytes: float) -> str:
    """What small runs with another store say."""
    ends = {"fits": "and fits", "may not fit": "and may not fit", "does not fit": "and does not fit either"}
    return f"With --store {store} it needs {span(needs)} {ends[verdict_of(needs, limit_bytes)]}."


def check(found: Check) -> str:
    """How well the smaller of the small runs foretell the largest."""
    return (
        f"Check: from the other small runs, {found.node.name} were to need {size(found.predicted.value)} and took "
        f"{size(found.measured_bytes)} ({found.error_ratio:+.1%})."
    )


def no_size(reason: str) -> str:
    """What it means that nobody knows how large the dataset is."""
    return (
        f"The size of the dataset is not known ({reason}): what it takes is not told apart from ranks, workers and "
        "launcher, and cannot be scaled."
    )


def not_covered(flags: str, command: str) -> str:
    """A change that no small run speaks for."""
    return f"What {flags} needs, these runs do not tell: measure it with {command}"


def dataset_in_shm(needed: float, has: int, *, here: bool) -> str:
    """That the datasets which ranks move to ``/dev/shm`` for their workers do not fit there; ``here`` it runs."""
    ends = "it does not fit." if here else "it does not fit where a node of the job has no more."
    return (
        f"Ranks move the dataset to /dev/shm to hand it to their workers, {size(needed)} in all, and there are "
        f"{size(has)} here: {ends} Cure: --worker-start-method fork, --store shared, or a larger /dev/shm."
    )


def shared_memory(needed: float, has: int | None, what: str) -> str | None:
    """Whether what is handed to and from workers fits into ``/dev/shm``; None where nothing is."""
    if not needed:
        return None
    needs = f"{what} need up to {size(needed)} of /dev/shm"
    if has is None:
        return f"{needs}; how large it is here is not known."
    if needed > has:
        cure = "Cure: a larger /dev/shm, a smaller --prefetch-factor, or fewer --workers."
        return f"{needs}, which has {size(has)} here: too little. {cure}"
    return f"{needs}, which has {size(has)} here."

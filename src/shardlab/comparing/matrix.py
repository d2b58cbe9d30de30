"""Which configurations are compared: every sampler with every store and number of workers that fit each other."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from shardlab import dataset, plugins
from shardlab.config import RunConfig
from shardlab.dataset import DatasetSpec
from shardlab.errors import UsageError
from shardlab.launch.spec import spec_of
from shardlab.plan import path_plugin, resolve

AXES = ("sampler", "store", "workers")
Key = tuple[str, str, str]


@dataclass(frozen=True)
class CompareConfig:
    """What is compared, and what is asked of the answer."""

    samplers: Annotated[
        str, arg(help="Samplers, with commas between; auto is every one that the dataset fits.")
    ] = "auto"
    stores: Annotated[
        str, arg(help="Stores, with commas between; auto is each sampler's own default.")
    ] = "auto"
    workers: Annotated[str, arg(help="Numbers of workers, with commas between.")] = "0"
    repeats: Annotated[int, arg(help="Runs of each configuration, each in fresh processes, in turn.")] = 5
    baseline: Annotated[
        str | None,
        arg(metavar="NAME", help="What ratios are against: sampler, sampler+store or sampler+store+workers. "
            "The first configuration, if not given."),
    ] = None  # fmt: skip
    max_copies: Annotated[
        float | None, arg(metavar="X", help="Gate: exit 4 where one, but a --baseline, surely holds more.")
    ] = None
    min_ratio: Annotated[
        float | None,
        arg(metavar="X", help="Gate: exit 4 where one surely is slower than this times the baseline."),
    ] = None
    of: Annotated[
        str | None,
        arg(metavar="DIR,DIR", help="Run nothing: compare the runs that these results folders hold."),
    ] = None
    fresh: Annotated[bool, arg(help="Begin anew where an interrupted comparison could go on.")] = False
    across_machines: Annotated[bool, arg(help="Compare runs of different machines all the same.")] = False

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise UsageError("--repeats must be at least 1", self.repeats)
        for name in ("max_copies", "min_ratio"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"--{name.replace('_', '-')} must be more than 0", value)


@dataclass(frozen=True)
class Matrix:
    """Resolved configurations in the order in which they were asked for; ``left_out`` says why others are not.

    ``notes`` are on flags that change nothing.
    """

    configs: tuple[RunConfig, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def names(self) -> dict[Key, str]:
        """What each configuration is called."""
        return names_of({key_of(config) for config in self.configs})


def matrix(wanted: CompareConfig, base: RunConfig, *, cuda: bool = False) -> Matrix:
    """All valid combinations. Raises UsageError where there is none, or a name is unknown.

    Samplers that ``auto`` came to are left out without a word where the dataset is not for them.
    """
    found: dict[tuple[str, str, str], RunConfig] = {}
    notes: dict[str, None] = {}
    left_out: list[str] = []
    for sampler, store, workers in itertools.product(
        _samplers(wanted, base), _stores(wanted.stores), _counts(wanted.workers)
    ):
        try:
            asked = dataclasses.replace(base, sampler=sampler, store=store, workers=workers)
            resolved = resolve(asked, cuda=cuda)
            spec_of(resolved.config)
            found.setdefault(key_of(resolved.config), resolved.config)
            notes |= dict.fromkeys(f"{sampler}: {note}" for note in resolved.notes)
        except UsageError as error:
            left_out.append(f"{short(sampler, store, str(workers))}: {error}")
    if not found:
        raise UsageError(
            "no combination of --samplers, --stores and --workers fits", left_out[0] if left_out else "none"
        )
    return Matrix(tuple(found.values()), tuple(left_out), tuple(notes))


def names_of(keys: Collection[Key]) -> dict[Key, str]:
    """``keyed + shared, 2 workers``; a file of the user's without its folder where that is enough."""
    names = {key: short(*key) for key in keys}
    alike = {name for name, count in Counter(names.values()).items() if count > 1}
    return {key: short(*key, whole=True) if name in alike else name for key, name in names.items()}


def short(sampler: str, store: str, workers: str, *, whole: bool = False) -> str:
    """A configuration in a few words; a file of the user's without its folder, but for ``whole``.

    >>> short("/home/me/paths.py:mine", "private", "1")
    'paths.py:mine + private, 1 worker'
    """
    plural = {"0": "", "1": ", 1 worker"}.get(workers, f", {workers} workers")
    return f"{sampler if whole else sampler.rpartition('/')[2]} + {store}{plural}"


def chosen(name: str | None, configs: Sequence[RunConfig]) -> RunConfig:
    """The configuration that ``sampler``, ``sampler+store`` or ``sampler+store+workers`` names first."""
    if name is None:
        return configs[0]
    parts = [part.strip() for part in name.split("+")]
    for config in configs:
        if list(key_of(config))[: len(parts)] == parts:
            return config
    raise UsageError(
        "--baseline must name one that is compared", name, ["+".join(key_of(c)) for c in configs]
    )


def key_of(config: RunConfig) -> Key:
    """Sampler, store and workers: what tells configurations of one comparison from each other."""
    return config.sampler, config.store, str(config.workers)


def _samplers(wanted: CompareConfig, base: RunConfig) -> list[str]:
    paths = plugins.find("datapath")
    if wanted.samplers == "auto":
        kind = dataset.kind_of(DatasetSpec(base.dataset, base.data_dir, base.seed))
        fitting = [name for name, path in paths.items() if kind in path.fact("DATASET_KINDS", (kind,))]
        return sorted(fitting, key=lambda name: name != "distributed")  # what people have comes first
    names = _names(wanted.samplers, "--samplers")
    for name in names:
        path_plugin(name)  # refuses a name that is none
    return names


def _stores(text: str) -> list[str]:
    names, known = _names(text, "--stores"), plugins.find("store")
    for name in names:
        if name not in ("auto", *known):
            raise UsageError("--stores must name stores", name, ["auto", *known])
    return names


def _names(text: str, flag: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{flag} must name something", text, ["auto", "names with commas between"])
    return names


def _counts(text: str) -> list[int]:
    try:
        counts = [int(count) for count in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 0:
        raise UsageError("--workers must be numbers with commas between", text, ["0", "0,2"])
    return counts

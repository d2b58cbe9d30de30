"""How many times a figure is that of a baseline, pair by pair where runs were made in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from shardlab.analysis.aggregate import differing, label, measured, without_interrupted
from shardlab.errors import UsageError
from shardlab.intervals import Ratio

PAIR = ["comparison", "repeat"]


def against(
    runs: pd.DataFrame, baseline: Mapping[str, Any] | str, value: str = "samples_per_s"
) -> pd.DataFrame:
    """A row for each configuration but the baseline: its ``value`` over the baseline's.

    ``baseline`` is a configuration's columns with their values, or its label: ``{"sampler": "distributed"}``,
    ``"distributed + private"``. Runs of both that have the same ``comparison`` and ``repeat`` ran one after the
    other and make a pair; ``ratio`` is then the median over the pairs. Where no two of them do, it is the ratio
    of the medians, and ``paired`` is false. ``pairs`` counts pairs, or the runs of the side with fewer;
    ``low`` and ``high`` are empty where those are less than :data:`shardlab.intervals.FEWEST`. Only runs with the
    status ``ok`` are in a ratio, and a configuration without one has an empty ratio.

    Returns the configurations' columns, then ``label ratio low high pairs paired``.
    Raises UsageError where none or several of the configurations fit the baseline.
    """
    runs = without_interrupted(runs)
    keys = differing(runs)
    groups = [
        (dict(zip(keys, key, strict=True)), group)
        for key, group in runs.groupby(keys, dropna=False, sort=False)
    ]
    chosen = _the_baseline(groups, baseline)
    rows = [
        {**flags, "label": label(flags), **_ratio(group, groups[chosen][1], value)}
        for number, (flags, group) in enumerate(groups)
        if number != chosen
    ]
    table = pd.DataFrame(rows, columns=[*keys, "label", "ratio", "low", "high", "pairs", "paired"])
    return table.astype(dict.fromkeys(["ratio", "low", "high"], "float64"))


def _the_baseline(
    groups: list[tuple[dict[str, Any], pd.DataFrame]], baseline: Mapping[str, Any] | str
) -> int:
    fitting = [number for number, (flags, group) in enumerate(groups) if _fits(flags, group, baseline)]
    if len(fitting) != 1:
        several = "one configuration only" if fitting else "a configuration of these runs"
        raise UsageError(
            f"the baseline must be {several}", baseline, [repr(label(flags)) for flags, _ in groups]
        )
    return fitting[0]


def _fits(flags: dict[str, Any], group: pd.DataFrame, baseline: Mapping[str, Any] | str) -> bool:
    if isinstance(baseline, str):
        return label(flags) == baseline
    first = group.iloc[0]
    return all(name in first and _same(first[name], wanted) for name, wanted in baseline.items())


def _same(cell: Any, wanted: Any) -> bool:
    return bool(pd.isna(wanted)) if pd.isna(cell) else bool(cell == wanted)


def _ratio(group: pd.DataFrame, base: pd.DataFrame, value: str) -> dict[str, Any]:
    a, b = (side[side["status"] == "ok"].dropna(subset=[value]) for side in (group, base))
    b = b[b[value] != 0]  # of nothing there is no multiple
    if a.empty or b.empty:
        return {"ratio": None, "low": None, "high": None, "pairs": 0, "paired": False}
    if (a[value] == 0).any():  # which has no logarithm, and so no bounds
        ratio = measured(a, value).median() / measured(b, value).median()
        return {"ratio": ratio, "low": None, "high": None, "pairs": min(len(a), len(b)), "paired": False}
    pairs = _pairs(a, b, value)
    if len(pairs):
        found = Ratio.of(pairs["a"].tolist(), pairs["b"].tolist())
    else:
        found = Ratio.unpaired(measured(a, value).tolist(), measured(b, value).tolist())
    return {
        "ratio": found.value, "low": found.low, "high": found.high, "pairs": found.pairs, "paired": found.paired,
    }  # fmt: skip


def _pairs(a: pd.DataFrame, b: pd.DataFrame, value: str) -> pd.DataFrame:
    """Columns ``a`` and ``b``, a row for each run of one side that has its neighbour on the other."""
    sides = [
        side.reindex(columns=[*PAIR, value])
        .dropna()
        .drop_duplicates(PAIR, keep="last")
        .set_index(PAIR)[value]
        for side in (a, b)
    ]
    return pd.concat(sides, axis=1, join="inner", keys=["a", "b"]).astype("float64")

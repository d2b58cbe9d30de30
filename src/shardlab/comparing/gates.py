"""Rules that a CI run may set: they fail where the whole interval lies beyond, or where there is nothing to judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardlab.comparing.standing import Standing
from shardlab.intervals import FEWEST
from shardlab.words import bounded, reasons


@dataclass(frozen=True)
class Gate:
    """One rule held against one configuration."""

    rule: str
    name: str
    passed: bool
    sentence: str


@dataclass(frozen=True)
class Rules:
    """What is asked of every configuration; of a baseline that was named only its speed is taken."""

    max_copies: float | None
    min_ratio: float | None
    baseline_was_named: bool


def gates(standings: Sequence[Standing], rules: Rules, not_measured: Sequence[str] = ()) -> list[Gate]:
    """Each rule for each configuration; ``not_measured`` are those that were asked for and are not among them."""
    by_name = {each.name: each for each in standings}
    found: list[Gate] = []
    if rules.max_copies is not None:
        held = [each for each in standings if not (each.is_baseline and rules.baseline_was_named)]
        found += _of_rule(f"--max-copies {rules.max_copies:g}", not_measured,
                          [_copies(each, rules.max_copies) for each in held or standings])  # fmt: skip
    if rules.min_ratio is not None:
        held = [each for each in standings if not each.is_baseline]
        found += _of_rule(f"--min-ratio {rules.min_ratio:g}", not_measured,
                          [_ratio(each, rules.min_ratio, by_name) for each in held])  # fmt: skip
    return found


def _of_rule(rule: str, not_measured: Sequence[str], judged: list[Gate]) -> Iterator[Gate]:
    yield from judged
    for why in not_measured:
        yield Gate(rule, why.partition(":")[0], False, f"{rule}: not measured, {why}")
    if not judged:
        yield Gate(rule, "", False, f"{rule}: there is nothing to hold it against.")


def _copies(each: Standing, most: float) -> Gate:
    rule = f"--max-copies {most:g}"
    if each.copies is None or each.copies_low is None:
        why = missing(each, "run", "copies")
        return Gate(rule, each.name, False, f"{rule}: {each.name} has no figure ({why}).")
    passed = each.copies_low <= most
    figure = bounded(each.copies, each.copies_low, each.copies_high, " copies")
    return Gate(rule, each.name, passed, f"{rule}: {each.name} {'passes' if passed else 'fails'}, {figure}.")


def _ratio(each: Standing, least: float, by_name: dict[str, Standing]) -> Gate:
    rule = f"--min-ratio {least:g}"
    if each.ratio is None or each.ratio_high is None:
        return Gate(rule, each.name, False, f"{rule}: {each.name} is not decided ({_undecided(each, by_name)}).")
    passed = each.ratio_high >= least
    figure = bounded(each.ratio, each.ratio_low, each.ratio_high, " times the baseline")
    return Gate(rule, each.name, passed, f"{rule}: {each.name} {'passes' if passed else 'fails'}, {figure}.")


def _undecided(each: Standing, by_name: dict[str, Standing]) -> str:
    baseline = by_name.get(each.baseline or "")
    if baseline is None:
        return "it has no baseline"
    for standing, who in ((baseline, f"the baseline, {baseline.name},"), (each, "it")):
        if standing.samples_per_s is None:
            return f"{who} has no samples/s: {missing(standing, 'run', 'audit', 'samples_per_s')}"
    return f"an interval needs {FEWEST} runs of each. Cure: --repeats {FEWEST}"


def missing(each: Standing, *columns: str) -> str:
    """Why a figure is missing, as the runs say."""
    found = reasons(each.reason)
    return next((found[name].rstrip(".") for name in columns if name in found), "the runs do not say why")

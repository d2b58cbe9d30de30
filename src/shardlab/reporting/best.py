"""Which of several configurations that answer the same question is best, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlab import choosing
from shardlab.intervals import FEWEST, Ratio
from shardlab.reporting.configurations import Configuration
from shardlab.reporting.words import Row, many, mib, number, times


def best_of(group: Sequence[Configuration]) -> Iterator[str]:
    """Which of several that answer the same question is best, by the rule of :func:`shardlab.choosing.best_of`."""
    chosen = choosing.best_of(group)
    if len(group) < 2 or chosen is None:
        return
    best = group[chosen]
    others = [each for each in group if each is not best and each.status == "ok" and each.samples_per_s is not None]
    held = "copies on a node not known" if best.copies is None else f"{best.copies:.1f} copies on a node"
    told = [f"Best on {best.where}: {best.label}, with {held} and {number(best.samples_per_s)} different samples/s."]
    told += _saving(group, best)
    if others:
        told.append(_against(max(others, key=_speed), best))
    yield " ".join(told)


def _saving(group: Sequence[Configuration], best: Configuration) -> Iterator[str]:
    """Of those that are clear of one copy and of the best, the one that holds most: what the best saves on it."""
    more = [each for each in group if not choosing.is_one_copy(each) and _holds_more(each, best)]
    most = max(more, key=lambda each: each.copies or 0.0, default=None)
    if most is not None:
        had, left = most.figures["duplicate_bytes"], best.figures["duplicate_bytes"]
        if had is not None and left is not None:
            yield f"It saves {mib(had - left)} MiB on a node against {most.label}."


def _holds_more(a: Configuration, b: Configuration) -> bool:
    """Whether ``a`` is clear of ``b``: their intervals do not meet."""
    low = a.copies if a.copies_low is None else a.copies_low
    high = b.copies if b.copies_high is None else b.copies_high
    return low is not None and high is not None and low > high


def _against(fastest: Configuration, best: Configuration) -> str:
    """How the best stands to the fastest of the others."""
    a, b = (fastest, best) if _speed(fastest) > _speed(best) else (best, fastest)
    ratio = _ratio(a, b)
    how = f"{times(ratio.value, ratio.low, ratio.high)} as fast"
    if a is best:
        return f"It is {how} as {fastest.label}{_caution(ratio)}."
    held = "; its copies are not known" if fastest.copies is None else f", and holds {fastest.copies:.1f} copies"
    return f"{fastest.label} is {how}{_caution(ratio)}{held}."


def _caution(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        runs = "a single run" if ratio.pairs == 1 else many(ratio.pairs, "run")
        return f", as far as {runs} of each can say (an interval takes {FEWEST})"
    return ", which is no clear difference" if ratio.low <= 1 <= ratio.high else ""


def _ratio(a: Configuration, b: Configuration) -> Ratio:
    """Pair by pair where runs were made in turn, as :func:`shardlab.analysis.against` does it."""
    left, right = ({_turn(run): float(run["samples_per_s"]) for run in _timed(each)} for each in (a, b))
    pairs = [turn for turn in left if turn in right and turn[0] is not None]
    if pairs:
        return Ratio.of([left[turn] for turn in pairs], [right[turn] for turn in pairs])
    return Ratio.unpaired(*([float(run["samples_per_s"]) for run in _timed(each)] for each in (a, b)))


def _timed(each: Configuration) -> list[Row]:
    return [run for run in each.runs if run["status"] == "ok" and run["samples_per_s"]]


def _turn(run: Row) -> tuple[object, object]:
    return run["comparison"], run["repeat"]


def _speed(each: Configuration) -> float:
    return each.samples_per_s or 0.0

"""Which configuration to use and why, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardlab import choosing
from shardlab.comparing.gates import missing
from shardlab.comparing.standing import Row, Standing, ratio
from shardlab.intervals import FEWEST, Ratio
from shardlab.words import bounded, mib, times


def best_of(standings: Sequence[Standing]) -> Standing | None:
    """By the rule of :func:`shardlab.choosing.best_of`."""
    number = choosing.best_of(standings)
    return None if number is None else standings[number]


def sentences(
    standings: Sequence[Standing], best: Standing | None, groups: Mapping[str, Sequence[Row]]
) -> Iterator[str]:
    """The choice and its reasons, then what went wrong. ``groups`` has the rows that all of it is read off."""
    if best is None:
        yield from _nothing(standings)
    else:
        yield _chosen(best)
        yield from _against(best, standings)
        yield from _rivals(standings, best, groups)
        if best.stall_ratio is None:
            yield (
                "Nothing computed here (--compute none): behind steps that take longer than reading, what is left "
                "of the speed is less waiting, and of the copies all of them. --compute 5ms shows it."
            )
    for each in standings:
        if each.status == "failed":
            yield f"{each.name} failed: {missing(each, 'run')}."
        elif each.status == "audit":
            yield f"{each.name} is wrong: {missing(each, 'audit')}."


def _nothing(standings: Sequence[Standing]) -> Iterator[str]:
    well = [each for each in standings if each.status == "ok"]
    if well:
        yield f"Which is faster is not known: {missing(well[0], 'samples_per_s')}."
    else:
        yield "No configuration ended well: there is nothing to choose from."


def _chosen(best: Standing) -> str:
    speed = f"{best.samples_per_s:,.0f} different samples/s"
    if best.samples_per_s_low is not None and best.samples_per_s_high is not None:
        speed += f" ({best.samples_per_s_low:,.0f} to {best.samples_per_s_high:,.0f})"
    if best.copies is None:
        why = missing(best, "copies")
        return f"Use {best.name}: the fastest, {speed}. Copies of the dataset are not known ({why})."
    held = f"{best.copies:.1f} copies ({best.copies_low:.2f} to {best.copies_high:.2f})"
    if not best.is_one_copy:
        return f"Use {best.name}: it holds fewest, {held}, {speed}. Add --stores shared to see what one copy does."
    if choosing.is_surely_one_copy(best):
        held = f"one copy on a node ({held})"
        return f"Use {best.name}: it holds {held}, and of those that do it is the fastest, {speed}."
    return f"Use {best.name}: it holds {held}, not clear of one copy, and of such it is the fastest, {speed}."


def _against(best: Standing, standings: Sequence[Standing]) -> Iterator[str]:
    baseline = next((each for each in standings if each.name == best.baseline), None)
    if baseline is None or baseline is best:
        return
    saved = _saved(best, baseline)
    if best.ratio is None:
        if saved:
            yield f"Against {baseline.name}{saved}."
        return
    how = times(best.ratio, best.ratio_low, best.ratio_high)
    if best.ratio_low is None or best.ratio_high is None:
        yield f"That is {how} as fast as {baseline.name}, of too few runs for an interval ({FEWEST}){saved}."
    elif best.ratio_low <= 1 <= best.ratio_high:
        yield f"That is not clearly faster or slower than {baseline.name}, {how} as fast{saved}."
    else:
        yield f"That is {how} as fast as {baseline.name}{saved}."


def _saved(best: Standing, baseline: Standing) -> str:
    known = baseline.duplicate_bytes is not None and best.duplicate_bytes is not None
    if not known or baseline.is_one_copy or (baseline.copies_low or 0) <= (best.copies_high or 0):
        return ""
    saved = (baseline.duplicate_bytes or 0) - (best.duplicate_bytes or 0)
    return f", which holds {baseline.copies:.1f} copies: it saves {mib(saved)} MiB on each node"


def _rivals(
    standings: Sequence[Standing], best: Standing, groups: Mapping[str, Sequence[Row]]
) -> Iterator[str]:
    """Who is faster and holds more, and who cannot be told from the best."""
    for each in standings:
        over: Ratio | None = ratio(groups[each.name], groups[best.name]) if each is not best else None
        if over is None or over.low is None or over.high is None or each.status != "ok":
            continue
        how = times(over.value, over.low, over.high)
        if over.low > 1 and not each.is_one_copy and each.copies is not None:
            held = bounded(each.copies, each.copies_low, each.copies_high, " copies")
            yield f"{each.name} is {how} as fast, and holds {held}."
        elif over.low <= 1 <= over.high and each.is_one_copy == best.is_one_copy:
            yield f"{each.name} cannot be told from it, {how} as fast."

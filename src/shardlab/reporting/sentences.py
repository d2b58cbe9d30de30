"""What the rows say, in sentences: each claim is read off a figure of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlab import plugins
from shardlab.choosing import is_one_copy, is_surely_one_copy
from shardlab.reporting.best import best_of
from shardlab.reporting.configurations import Configuration, by_question
from shardlab.reporting.words import Row, between, listed, many, mib, number, percent, reasons

MOST_NAMED = 8  # configurations in a sentence


def verdict(chosen: Sequence[Configuration], machines: int = 1, interrupted: int = 0) -> list[str]:
    """The sentences, most important first: what went wrong, which is best, what each one holds.

    ``interrupted`` runs are in none of ``chosen``.
    """
    sentences = [text for each in chosen for text in went_wrong(each)]
    if interrupted:
        was = "was" if interrupted == 1 else "were"
        sentences.append(f"{many(interrupted, 'run')} {was} interrupted, and counted nowhere.")
    if machines > 1:
        sentences.append(f"These runs are of {machines} machines, whose figures do not compare with each other.")
    groups = by_question([each for each in chosen if each.figures["n"]])
    for group in groups:
        sentences += best_of(group)
    for group in groups:
        sentences += holdings(group, alone=len(chosen) == 1)
    sentences += _delivery(chosen)
    if len(chosen) == 1:
        sentences += [text for group in groups for each in group for text in speed(each)]
    return sentences or ["No run was measured to its end."]


def holdings(group: Sequence[Configuration], alone: bool = False) -> Iterator[str]:
    """How many copies of the dataset the node holds under each configuration, and what would make it one."""
    if alone:
        yield memory(group[0], "The fullest node" if (group[0].last["nnodes"] or 1) > 1 else "This node")
        return
    unknown = [each for each in group if each.figures["copies"] is None]
    more = [each for each in group if each not in unknown and not is_one_copy(each)]
    less = [each for each in group if each not in unknown and each not in more]
    if more:
        worst = max(each.figures["duplicate_bytes"] or 0 for each in more)
        up_to = f"up to {mib(worst)} MiB of it duplicate" if len(more) > 1 else f"{mib(worst)} MiB of it duplicate"
        yield f"On {_hold(sorted(more, key=_copies, reverse=True))}: {up_to}. Keep one copy with {_cure(more)}."
    if less:
        for which, end in ((True, "nothing to save"), (False, "not clear of one copy")):
            such = [each for each in less if is_surely_one_copy(each) is which]
            if such:
                yield f"On {_hold(sorted(such, key=_copies))}: {end}."
    for each in unknown:
        yield memory(each, each.name)


def _hold(group: Sequence[Configuration]) -> str:
    """``mnist, 2 ranks, a node holds 2.0 copies of the dataset (1.9 to 2.1) with ...; 1.0 (0.9 to 1.1) with ...``."""
    first, *rest = [(each, *_held(each)) for each in group]
    told = [f"{first[1]} copies of the dataset{first[2]} with {first[0].label}"]
    told += [f"{copies}{bounds} with {each.label}" for each, copies, bounds in rest[: MOST_NAMED - 1]]
    if len(group) > MOST_NAMED:
        told.append(f"{len(group) - MOST_NAMED} more are in the table")
    return f"{group[0].where}, a node holds {'; '.join(told)}"


def _held(each: Configuration) -> tuple[str, str]:
    """Copies in words, and their interval in brackets."""
    figures = each.figures
    bounds = between(figures["copies_low"], figures["copies_high"], 2)
    return f"{'at least ' if each.bounded else ''}{figures['copies']:.1f}", bounds


def memory(each: Configuration, name: str) -> str:
    """How many copies ``name`` holds, and what would make it one."""
    if each.figures["copies"] is None:
        reason = _why(each.last, "copies")
        return f"{name}: copies of the dataset not known: {reason}."
    copies, bounds = _held(each)
    text = f"{name} holds {copies} copies of the dataset{bounds}"
    if not is_one_copy(each):
        duplicate = mib(each.figures["duplicate_bytes"])
        return f"{text}, {duplicate} MiB of it duplicate. Keep one copy with {_cure([each])}."
    return f"{text}: {'nothing to save' if is_surely_one_copy(each) else 'not clear of one copy'}."


def _copies(each: Configuration) -> float:
    return float(each.figures["copies"])


def went_wrong(each: Configuration) -> Iterator[str]:
    """Runs that failed, and runs whose ranks did not get what they should."""
    failed = [run for run in each.runs if run["status"] == "failed"]
    if failed:
        reason = _why(failed[-1], "run")
        count = "the run" if len(each.runs) == 1 else f"{len(failed)} of {len(each.runs)} runs"
        yield f"{each.name}: {count} failed: {reason}."
    for run in [run for run in each.runs if run["status"] == "audit"][-1:]:
        yield f"{each.name}: the ranks did not get what they should: {_finding(run)} (run {run['run_id']})."


def _finding(run: Row) -> str:
    told = reasons(run["reason"]).get("audit")
    if told:
        return told.rstrip(".")
    found = []
    if run["missing"]:
        found.append(f"{run['missing']:,} of {number(run['samples'])} samples reached no rank")
    if run["duplicates"]:
        found.append(f"{run['duplicates']:,} of {number(run['delivered'])} delivered came again")
    return listed(found) or "nothing is missing or twice, so order, content or the number of steps is wrong"


def speed(each: Configuration) -> Iterator[str]:
    """Samples per second, and how much of the time ranks wait; nothing where no run delivered what it should."""
    figures, well = each.figures, [run for run in each.runs if run["status"] == "ok"]
    if figures["samples_per_s"] is None:
        yield from (f"Samples/s not known: {_why(run, 'samples_per_s')}." for run in well[-1:])
        return
    interval = between(figures["samples_per_s_low"], figures["samples_per_s_high"])
    ranks = many(each.last["world_size"], "rank")
    text = f"{number(figures['samples_per_s'])} different samples/s{interval} on {ranks}"
    if figures["stall_ratio"] is not None:
        text += f"; ranks stall {percent(figures['stall_ratio'])} of their time"
    yield text + "."


def _delivery(chosen: Sequence[Configuration]) -> Iterator[str]:
    runs = [run for each in chosen for run in each.runs]
    right = [run for run in runs if run["status"] == "ok" and run["missing"] is not None]
    if right and len(right) == len(runs):
        which = "The run" if len(runs) == 1 else "Every run"
        yield f"{which} delivered what it should, {_repeats(right)}."
    elif right:
        yield f"{len(right)} of {many(len(runs), 'run')} delivered what they should."


def _repeats(runs: Sequence[Row]) -> str:
    repeats, left = (max(run[name] or 0 for run in runs) for name in ("duplicates", "missing"))
    cut = any(run["max_steps"] is not None for run in runs)
    up_to = "up to " if len(runs) > 1 else ""
    told = [f"{up_to}{many(repeats, 'repeat')} to fill the last round" if repeats else "no sample twice"]
    if left:
        told.append(f"{up_to}{left:,} left out by --tail drop" + (" or --max-steps" if cut else ""))
    return listed(told)


def _cure(group: Sequence[Configuration]) -> str:
    """The flags that leave one copy, of those that the data paths of all of them can do."""
    cures = [store for store in ("reader", "shared") if all(store in _other_stores(each.last) for each in group)]
    return " or ".join(f"--store {store}" for store in cures) or "a dataset that ranks can share"


def _other_stores(run: Row) -> set[str]:
    path = plugins.find("datapath").get(run["sampler"])
    return set(path.fact("STORES") if path else ("shared", "mmap")) - {run["store"]}


def _why(run: Row, column: str) -> str:
    return reasons(run["reason"]).get(column, "no reason was kept").rstrip(".")

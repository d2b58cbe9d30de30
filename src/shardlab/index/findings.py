"""What can be wrong with an epoch: one function for each kind of fault, from the deliveries and the rules."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardlab.index.deliveries import Deliveries
from shardlab.index.order import LAYOUTS, Layout, due, expected_index, full_rounds
from shardlab.index.rules import Finding, Rules, Words

_CHUNK = 1 << 20


def foreign(got: Deliveries, rules: Rules) -> Finding | None:
    """An index that is not one of the samples."""
    rows = np.flatnonzero(~_inside(got.index, rules.samples))
    if not len(rows):
        return None
    of = "a sample" if rules.samples is None else f"one of the {rules.samples} samples"
    sentence = f"index {got.index[rows[0]]} is not {of}; {len(rows)} such deliveries"
    return rules.finding_at("foreign", got, int(rows[0]), sentence)


def missing(got: Deliveries, rules: Rules) -> Finding | None:
    """More samples that no rank got than the tail explains; names the smallest, and where it was due."""
    count = missing_count(got, rules.samples)
    if rules.samples is None or count is None or rules.truncated:
        return None
    allowed = rules.missing_allowed(rules.samples)
    if count <= allowed:
        return None
    index = _smallest_missing(got.values[_inside(got.values, rules.samples)])
    sentence = f"sample {index} reached no rank; {count} of {rules.samples} are missing"
    if allowed:
        sentence += f", the tail explains {allowed}"
    place = _due_in_full_round(index, rules.samples, rules)
    if place is None:
        return rules.finding("missing", sentence)
    return rules.finding("missing", f"rank {place[0]}, step {place[1]}, place {place[2]}: {sentence}", *place)


def duplicated(got: Deliveries, rules: Rules) -> Finding | None:
    """More repeats than padding explains, or repeats before the last steps of a rank."""
    allowed = rules.repeats_allowed(int(got.steps.max()))
    repeated = got.repeated()
    count = int(np.count_nonzero(repeated))
    last_steps = -(-allowed // rules.round_size) + 1
    early = repeated & (got.step < got.steps[got.rank] - last_steps)
    if count <= allowed and not early.any():
        return None
    row = int(np.argmax(repeated if count > allowed else early))
    before = got.where(got.first_row(int(got.index[row])))
    sentence = f"sample {got.index[row]} was already delivered to {before}; {count} repeats in all"
    if allowed:
        sentence += f", padding explains {allowed}, in the last {last_steps} steps"
    return rules.finding_at("duplicated", got, row, sentence)


def order(got: Deliveries, rules: Rules) -> Finding | None:
    """Without shuffling, a sample in a full round where another was due; the tail is judged by counts."""
    if rules.shuffle or rules.samples is None:
        return None
    layouts = LAYOUTS if rules.layout is None else (rules.layout,)
    differing = [(layout, *_differing(got, layout, rules.samples, rules)) for layout in layouts]
    if rules.layout is None:
        differing.append(("blocks", *_differing_from_own_start(got)))
    layout, rows, expected = min(differing, key=lambda found: len(found[1]))
    if not len(rows):
        return None
    right = f"sample {expected[0]} was due" if expected[0] >= 0 else f"{rules.batch_size} make a batch"
    sentence = f"sample {got.index[rows[0]]} came, {right} ({layout} layout); {len(rows)} places differ"
    return rules.finding_at("order", got, int(rows[0]), sentence)


def content(got: Deliveries, rules: Rules) -> Finding | None:
    """A sample whose content is not that of the index it came under."""
    if rules.expected_words is None or got.word is None:
        return None
    rows = np.flatnonzero(_inside(got.index, rules.samples))
    wrong = rows[rules.expected_words(got.index[rows]) != got.word[rows]]
    if not len(wrong):
        return None
    row = int(wrong[0])
    owner = _owner(got.word[row], rules.samples or 0, rules.expected_words)
    whose = "of no known sample" if owner is None else f"sample {owner}'s"
    sentence = f"came as sample {got.index[row]}, but its content is {whose}; {len(wrong)} samples differ"
    return rules.finding_at("content", got, row, sentence)


def length(got: Deliveries, rules: Rules) -> Finding | None:
    """A loader whose ``len`` is not the number of its steps."""
    if rules.truncated:
        return None
    pairs = list(zip(rules.len_reported, got.steps.tolist(), strict=True))
    wrong = [rank for rank, (said, came) in enumerate(pairs) if said is not None and said != came]
    if not wrong:
        return None
    said, came = pairs[wrong[0]]
    sentence = f"len(loader) says {said}, {came} steps came on rank {wrong[0]}"
    if len(wrong) > 1:
        sentence += f"; wrong on {len(wrong)} of {rules.world_size} ranks"
    return rules.finding("length", sentence, wrong[0])


def unequal_steps(got: Deliveries, rules: Rules) -> Finding | None:
    """Ranks that take different numbers of steps, unless ``keep`` asked for it."""
    few, many = int(np.argmin(got.steps)), int(np.argmax(got.steps))
    least, most = int(got.steps[few]), int(got.steps[many])
    if least == most or rules.tail == "keep":
        return None
    sentence = f"rank {few} took {least} steps, rank {many} took {most}: a collective in each step would hang"
    return rules.finding("unequal-steps", sentence, few, least)


CHECKS = (foreign, missing, duplicated, order, content, length, unequal_steps)


def missing_count(got: Deliveries, samples: int | None) -> int | None:
    """Number of samples that no rank got."""
    return None if samples is None else samples - int(np.count_nonzero(_inside(got.values, samples)))


def _inside(index: NDArray[np.int64], samples: int | None) -> NDArray[np.bool_]:
    return index >= 0 if samples is None else (index >= 0) & (index < samples)


def _smallest_missing(values: NDArray[np.int64]) -> int:
    # Rising and distinct, so a value that is ahead of its own place stands behind a gap.
    behind_gap = np.flatnonzero(values != np.arange(len(values)))
    return int(behind_gap[0]) if len(behind_gap) else len(values)


def _due_in_full_round(index: int, samples: int, rules: Rules) -> tuple[int, int, int] | None:
    if rules.shuffle or rules.layout is None:
        return None
    world_size, batch_size = rules.world_size, rules.batch_size
    place = due(rules.layout, index, samples=samples, world_size=world_size, batch_size=batch_size)
    full = full_rounds(rules.layout, samples, world_size, batch_size)
    return place if place[1] < full[place[0]] else None


def _differing(
    got: Deliveries, layout: Layout, samples: int, rules: Rules
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Rows of full rounds whose index is not the expected one, and what is; -1 past the end of a batch."""
    full = full_rounds(layout, samples, rules.world_size, rules.batch_size)
    rows = np.flatnonzero(got.step < full[got.rank])
    place = got.place[rows]
    expected = expected_index(
        layout, got.rank[rows], got.step[rows], place,
        samples=samples, world_size=rules.world_size, batch_size=rules.batch_size,
    )  # fmt: skip
    expected = np.where(place < rules.batch_size, expected, -1)
    wrong = np.flatnonzero(got.index[rows] != expected)
    return rows[wrong], expected[wrong]


def _differing_from_own_start(got: Deliveries) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """As above for contiguous parts that start wherever each rank's first sample says, such as parts of
    ceil(n / W). Repeats that end a rank's part are padding, left to the check of repeats.
    """
    expected = got.index.copy()
    new = ~got.repeated()
    for rank in range(len(got.steps)):
        rows = np.flatnonzero(got.rank == rank)
        own = rows[: np.flatnonzero(new[rows]).max(initial=-1) + 1]
        expected[own] = got.index[own[:1]] + np.arange(len(own))
    wrong = np.flatnonzero(got.index != expected)
    return wrong, expected[wrong]


def _owner(word: np.uint64, samples: int, expected_words: Words) -> int | None:
    for start in range(0, samples, _CHUNK):
        found = np.flatnonzero(expected_words(np.arange(start, min(start + _CHUNK, samples))) == word)
        if len(found):
            return start + int(found[0])
    return None

"""The rows of an experiment as a table that is read: intervals beside their value, what never changes said once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from shardlab.analysis.load import ENVIRONMENT
from shardlab.reporting.parts import Part, Table, Text
from shardlab.reporting.words import Row, cell, listed, many, rows_of

MOST_ROWS, MOST_COLUMNS = 20, 10
MOST_CHARACTERS = 60  # of a cell that is said once for all rows
_UNIT = re.compile(r"(_bytes|_per_s|_ratio|_s)?$")


def parts(name: str, frame: pd.DataFrame) -> Iterator[Part]:
    """The table of the file ``name``, and what of the file is not in it."""
    rows = [with_intervals(row) for row in rows_of(frame)]
    filled = [column for column in (rows[0] if rows else ()) if any(row[column] != "-" for row in rows)]
    if not filled:
        yield Text(f"{name} has no row.", loud=True)
        return
    same = [column for column in filled[1:] if len(rows) > 1 and len({row[column] for row in rows}) == 1]
    fixed = [column for column in same if len(rows[0][column]) <= MOST_CHARACTERS]
    shown = _most_telling([column for column in filled if column not in same], rows)
    made = Table.of(
        f"{name}, {many(len(rows), 'row')}", [column.replace("_", " ") for column in shown],
        [[row[column] for column in shown] for row in rows[:MOST_ROWS]],
    )  # fmt: skip
    yield replace(made, folds=True)
    if fixed:
        told = [f"{column.replace('_', ' ')} {rows[0][column]}" for column in fixed]
        yield Text(f"In every row: {'; '.join(told)}.")
    hidden = [column for column in filled if column not in shown and column not in fixed]
    left = [many(len(rows) - MOST_ROWS, "row")] if len(rows) > MOST_ROWS else []
    left += [f"the columns {listed(hidden)}"] if hidden else []
    if left:
        yield Text(f"Only in {name}: {listed(left)}.")


def _most_telling(columns: Sequence[str], rows: Sequence[dict[str, str]]) -> list[str]:
    """The first column and of the others MOST_COLUMNS - 1, in the order of the file.

    Columns with intervals have precedence, and those come last whose words are in the name of their row already;
    command lines are left out.
    """
    first, *others = columns
    words = [{"-", *re.split(r"[,/ ]+", row[first])} for row in rows]

    def precedence(column: str) -> int:
        if any(" to " in row[column] for row in rows):
            return 0
        return 2 if all(row[column] in known for row, known in zip(rows, words, strict=True)) else 1

    weighed = sorted((column for column in others if not column.endswith("flags")), key=precedence)
    kept = {first, *weighed[: MOST_COLUMNS - 1]}
    return [column for column in columns if column in kept]


def with_intervals(row: Row) -> dict[str, str]:
    """Cells as text by column, the environment left out; bounds in brackets behind the value that they bound.

    Bounds of ``x_s`` are ``x_s_low`` and ``x_s_high`` or ``x_low_s`` and ``x_high_s``; ``low`` and ``high`` are those
    of the column before them.
    """
    bounds = {name: found for name in row if (found := _bounds(name, row))}
    inside = {end for ends in bounds.values() for end in ends}
    cells = {}
    for name, value in row.items():
        if name in ENVIRONMENT or name in inside:
            continue
        low, high = (row[end] for end in bounds.get(name, (name, name)))
        known = name in bounds and value is not None and low is not None and high is not None
        cells[name] = cell(value) + (f" ({cell(low)} to {cell(high)})" if known else "")
    return cells


def _bounds(name: str, row: Row) -> tuple[str, str] | None:
    spellings = [(f"{name}_low", f"{name}_high")]
    spellings += [(_UNIT.sub(r"_low\1", name, count=1), _UNIT.sub(r"_high\1", name, count=1))]
    spellings += [("low", "high")] if [*row, "", ""][list(row).index(name) + 1] == "low" else []
    return next((ends for ends in spellings if set(ends) <= set(row)), None)

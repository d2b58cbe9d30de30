"""Where rows were made: the machine and the software, said once where all rows agree and aloud where they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pandas as pd

from shardlab.analysis import machines
from shardlab.analysis.load import ENVIRONMENT
from shardlab.reporting.parts import Part, Table, Text
from shardlab.reporting.words import cell, many, mib, rows_of

NOT_OF_A_MACHINE = ("argv", "load_1m")  # they differ from run to run of the same machine


def several(runs: pd.DataFrame) -> str:
    """The warning that the rows are of different machines; empty where they are of one."""
    count = len(machines(runs))
    return "" if count < 2 else (
        f"These rows are of {count} different machines or versions. Figures of one do not compare with figures of "
        "another: read each by itself."
    )


def parts(runs: pd.DataFrame) -> Iterator[Part]:
    """What is the same in all rows as one table; what differs, with the number of rows of each value."""
    warning = several(runs)
    if warning:
        yield Text(warning, loud=True)
        rows = [[cell(value) for value in row.values()] for row in rows_of(machines(runs))]
        yield Table.of("Machines", list(machines(runs).columns), rows)
    names = [name for name in ENVIRONMENT if name in runs and name not in NOT_OF_A_MACHINE]
    values = {name: [row[name] for row in rows_of(runs[names])] for name in names}
    table = [[name, _values(name, values[name])] for name in names]
    caption = f"Environment of {many(len(runs), 'row')}, a dash where it does not apply"
    yield Table.of(caption, ("what", "value"), table)


def _values(name: str, values: Iterable[object]) -> str:
    counts = Counter(_text(name, value) for value in values)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{text} in {many(count, 'row')}" for text, count in counts.items())


def _text(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int | float):
        return f"{mib(value)} MiB"
    if name == "git_sha" and isinstance(value, str):
        return value[:12]
    return cell(value)

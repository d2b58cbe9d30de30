"""Runs that results folders hold already, as groups that may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shardlab import csvlog
from shardlab.comparing.matrix import AXES, CompareConfig, names_of
from shardlab.comparing.turns import key_of_row, refuse_other_machines
from shardlab.config import RunConfig, flag
from shardlab.errors import UsageError

Row = Mapping[str, str]
OWN = {*AXES, "repeats", "data_dir", "start_method"}  # may differ between runs that are compared
NEEDED = {"run_id", "status", "samples_per_s", "copies", *AXES}
AXIS_FLAGS = {"sampler": "samplers", "store": "stores", "workers": "workers"}


def past_groups(
    folders: Sequence[str], wanted: CompareConfig, base: RunConfig, given: set[str]
) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """Runs by configuration, and of each the one that it is held against.

    In one folder that is the baseline. Of several, each configuration of a later folder is held against the same
    one of the first, and names say which folder. The flags that were ``given`` select among the runs.
    Raises UsageError where there are none, or where they differ in what a comparison must have alike.
    """
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise UsageError("--of must name different folders", ",".join(folders))
    by_folder = [_groups(folder, wanted, base, given) for folder in folders]
    every = [row for groups in by_folder for rows in groups.values() for row in rows]
    _refuse_unlike(every)
    if not wanted.across_machines:
        refuse_other_machines(every)
    if len(folders) == 1:
        return by_folder[0], {}
    groups, against = {}, {}
    for folder, found in zip(_told_apart(folders), by_folder, strict=True):
        for name, rows in found.items():
            groups[f"{name} ({folder})"] = rows
            if name in by_folder[0]:
                against[f"{name} ({folder})"] = f"{name} ({_told_apart(folders)[0]})"
    return groups, against


def _told_apart(folders: Sequence[str]) -> list[str]:
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(folders)


def _groups(folder: str, wanted: CompareConfig, base: RunConfig, given: set[str]) -> dict[str, list[Row]]:
    rows = [row for row in _rows(folder) if _selected(row, wanted, base, given)]
    if not rows:
        raise UsageError("--of must name folders that hold such runs", folder, cure="see its runs.csv")
    names = names_of({key_of_row(row) for row in rows})
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(names[key_of_row(row)], []).append(row)
    return groups


def _rows(folder: str) -> list[Row]:
    rows = csvlog.read_rows(Path(folder) / "runs.csv")
    lacking = NEEDED - rows[0].keys() if rows else set()
    if lacking:
        raise UsageError(
            "--of must name folders with rows of shardlab", f"{folder}/runs.csv without {', '.join(sorted(lacking))}"
        )
    return [{"comparison": "", "repeat": "0"} | row for row in rows if row["status"] != "interrupted"]


def _selected(row: Row, wanted: CompareConfig, base: RunConfig, given: set[str]) -> bool:
    for axis, name in AXIS_FLAGS.items():
        if name in given and row[axis] not in [each.strip() for each in getattr(wanted, name).split(",")]:
            return False
    fields = (set(RunConfig.__dataclass_fields__) - OWN) & given
    return all(row.get(name, "") == _cell(getattr(base, name)) for name in fields)


def _cell(value: object) -> str:
    """As it stands in the file."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_unlike(rows: Iterable[Row]) -> None:
    for name in RunConfig.__dataclass_fields__:
        values = sorted({row.get(name, "") for row in rows})
        if name not in OWN and len(values) > 1:
            told = " and ".join(repr(value) if value else "none" for value in values[:3])
            chosen = next(value for value in values if value)
            choose = flag(name) if chosen == "true" else flag(f"no_{name}") if chosen == "false" else None
            raise UsageError(
                f"runs that are compared must have one {flag(name)}", told,
                cure=f"choose with {choose or f'{flag(name)} {chosen}'}",
            )  # fmt: skip

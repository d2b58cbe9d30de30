"""The page of a folder with the CSV files of experiments: a question, a table and a picture for each."""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from shardlab.analysis.load import ENVIRONMENT
from shardlab.errors import RunFailed, UsageError
from shardlab.records import MACHINE
from shardlab.reporting import environment, experiment_table, pictures
from shardlab.reporting.parts import Commands, Image, Page, Part, Section, Text
from shardlab.reporting.words import Row, bounded, cell, listed, many, rows_of

FIRST = "claims.csv"
MOST_IMAGE_BYTES = 600_000
MOST_NAMED = 3
NAMES = ("label", "name", "claim", "what")
MEDIA = {".svg": "image/svg+xml", ".png": "image/png"}


def page(folder: Path, title: str) -> Page:
    """The report on every CSV file in ``folder``; one without a line is left out, and said to be.

    Raises RunFailed for one that is no table, UsageError where all are empty.
    """
    files = sorted(folder.glob("*.csv"), key=lambda file: (file.name != FIRST, file.name))
    read = {file: _read(file) for file in files}
    frames = {file: frame for file, frame in read.items() if frame is not None}
    empty = [file.name for file in files if file not in frames]
    if not frames:
        raise UsageError("a CSV file to report on must have a header", f"{listed(empty)}, empty")
    studio = pictures.Studio()
    sections = [_section(studio, file, frame) for file, frame in frames.items()]
    every = _environments([*frames.values()])
    verdict = [sentence for file, frame in frames.items() for sentence in sentences(file.stem, frame)]
    if described := len(every.columns):
        sections.append(Section("Environment", tuple(environment.parts(every))))
        verdict += [text for text in [environment.several(every)] if text]
    rows = sum(map(len, frames.values()))
    unsaid = "" if described else ", none of which says where it was made"
    left_out = f" Left out, because empty: {listed(empty)}." if empty else ""
    made_from = f"From {many(rows, 'row')} of {many(len(frames), 'CSV file')}{unsaid}.{left_out}"
    verdict = verdict or ["These files have no ratios and no claims: see the tables."]
    return Page(title, tuple(verdict), made_from, tuple(sections))


def sentences(name: str, frame: pd.DataFrame) -> Iterator[str]:
    """What a file says by itself: answers to claims, or how far ratios range and whether they are as wished.

    A claim with several rows is answered by how many of them say what, those that say it least by name.
    """
    rows = rows_of(frame)
    if {"claim", "answer"} <= set(frame.columns):
        for claim in dict.fromkeys(row["claim"] for row in rows):
            of_claim = [row for row in rows if row["claim"] == claim]
            yield f"{cell(claim).rstrip('.')}: {_answered(of_claim)}."
    elif has_ratios(frame):
        known = sorted((row for row in rows if row["ratio"] is not None), key=lambda row: row["ratio"])
        if known:
            ends = known[:1] if len(known) == 1 else [known[0], known[-1]]
            told = [f"{bounded(row['ratio'], row['low'], row['high'])} for {label_of(row)}" for row in ends]
            yield f"{name}: {many(len(known), 'ratio')}, from {' to '.join(told)}.{''.join(_as_wished(known))}"


def _answered(rows: Sequence[Row]) -> str:
    """``true in 6 of 7 configurations, false with a on 1 rank``; what nothing was asked for has no part in it."""
    of: dict[str, list[str]] = {}
    for row in rows:
        if row["answer"] is not None:
            of.setdefault(cell(row["answer"]).rstrip("."), []).append(str(row.get("configuration") or label_of(row)))
    number = sum(map(len, of.values()))
    if number < 2 or not of:
        return next(iter(of), "-")
    first, *others = sorted(of, key=lambda answer: -len(of[answer]))
    told = [f"{first} in all {number} configurations" if not others else f"{first} in {len(of[first])} of {number}"]
    return "; ".join([*told, *(f"{answer} with {_some(of[answer])}" for answer in others)])


def _some(names: Sequence[str]) -> str:
    """Of many names the first few."""
    more = len(names) - MOST_NAMED
    between = "; " if any("," in name for name in names) else ", "
    return between.join([*names[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _as_wished(rows: Sequence[Row]) -> Iterator[str]:
    """Whether ratios reach their ``target`` (at least) or keep to their ``limit`` (at most), where they have one."""
    for wish, words, side in (("target", "reach their target", 1), ("limit", "keep to their limit", -1)):
        aimed = [row for row in rows if isinstance(row.get(wish), int | float)]
        missed = [row for row in aimed if side * row["ratio"] < side * row[wish]]
        if missed:
            missed.sort(key=lambda row: side * row["ratio"] / row[wish])  # the worst first
            named = [f"{label_of(row)} ({cell(row['ratio'])} for {cell(row[wish])})" for row in missed]
            yield f" {len(aimed) - len(missed)} of {len(aimed)} {words}. Not so: {_some(named)}."
        elif aimed:
            yield f" All {len(aimed)} {words}."


def has_ratios(frame: pd.DataFrame) -> bool:
    """Whether the file compares: a ratio with its interval."""
    bounds = ["ratio", "low", "high"]
    return set(bounds) <= set(frame.columns) and len(frame[bounds].select_dtypes("number").columns) == 3


def label_of(row: Row) -> str:
    """What a row is called: its first text, with the second where the first is a kind of thing."""
    named = [str(row[name]) for name in NAMES if row.get(name) is not None]
    texts = [str(value) for name, value in row.items() if isinstance(value, str) and name not in ENVIRONMENT]
    if named and "setting" in row:
        return f"{named[0]}, {cell(row['setting'])}"
    return named[0] if named else ", ".join(texts[:2]) or "the row"


def _section(studio: pictures.Studio, file: Path, frame: pd.DataFrame) -> Section:
    return Section(file.stem.replace("_", " "), tuple(_parts(studio, file, frame)), grid=True)


def _parts(studio: pictures.Studio, file: Path, frame: pd.DataFrame) -> Iterator[Part]:
    question = _question(file)
    if question:
        yield Text(question)
    drawn = [image for image in (file.with_suffix(suffix) for suffix in MEDIA) if image.is_file()]
    yield from (_image(image, frame) for image in drawn)
    if not drawn and has_ratios(frame):
        labelled = frame.assign(label=[label_of(row) for row in rows_of(frame)])
        yield from pictures.against(studio, labelled, f"Ratios: {file.stem.replace('_', ' ')}")
    yield from experiment_table.parts(file.name, frame)
    commands = dict.fromkeys(frame["argv"].dropna()) if "argv" in frame else {}
    if commands:
        yield Commands(tuple((str(command), "") for command in commands))


def _question(file: Path) -> str:
    """The first paragraph of the experiment that wrote the file, ``experiments/NAME.py`` beside it or above."""
    above = [file.parent, *list(file.parent.resolve().parents)[:2]]
    sources = [folder / "experiments" / f"{file.stem}.py" for folder in above]
    source = next((found for found in sources if found.is_file()), None)
    try:
        docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) if source else None
    except (SyntaxError, ValueError, OSError):
        return ""
    return re.sub(r"\s+", " ", (docstring or "").split("\n\n")[0]).replace("`", "")


def _image(image: Path, frame: pd.DataFrame) -> Part:
    """A picture that the experiment drew."""
    content = image.read_bytes()
    if len(content) > MOST_IMAGE_BYTES:
        return Text(f"{image.name} is left out: {len(content):,} bytes, more than {MOST_IMAGE_BYTES:,}.")
    uri = f"data:{MEDIA[image.suffix]};base64,{base64.b64encode(content).decode()}"
    words = pictures.told(frame.assign(label=[label_of(row) for row in rows_of(frame)])) if has_ratios(frame) else ""
    return Image(uri, image.name, words or "Its figures are in the table below.")


def _read(file: Path) -> pd.DataFrame | None:
    """The rows of a file; None where it is empty."""
    try:
        return pd.read_csv(file).convert_dtypes()
    except pd.errors.EmptyDataError:
        return None
    except (ValueError, OSError) as error:
        raise RunFailed(f"{file}: is no CSV file that can be read: {error}") from error


def _environments(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The environment of all rows of those files that say where they were made.

    Of the columns that tell machines apart it has those that all these files have: what a file does not say makes
    its machine no other.
    """
    told = [frame for frame in frames if not set(MACHINE).isdisjoint(frame.columns)]
    if not told:
        return pd.DataFrame()
    every = pd.concat([frame[_described(frame)].astype("object") for frame in told], ignore_index=True)
    return every.drop(columns=[name for name in MACHINE if name in every and any(name not in each for each in told)])


def _described(frame: pd.DataFrame) -> list[str]:
    return [name for name in ENVIRONMENT if name in frame]

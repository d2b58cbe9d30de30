"""What a number means: the text of the dictionary of all columns, by name."""

from __future__ import annotations

import difflib
import re
import textwrap
from pathlib import Path

from shardlab.errors import UsageError

WIDTH = 100
DICTIONARY = Path(__file__).with_name("dictionary.md")


def explained(name: str) -> str:
    """All that the dictionary says of a number on the screen or of a column. Raises UsageError for other names.

    >>> print(explained("distinct"))
    distinct, samples, in runs.csv: different ones among them; empty when as delivered.
    <BLANKLINE>
    distinct, samples, in ranks.csv: ...
    """
    known = entries(DICTIONARY.read_text(encoding="utf-8"))
    wanted = name.strip().lower()
    wanted = wanted if wanted in known else wanted.removesuffix(" mib")  # as a heading has it
    if wanted not in known:
        raise UsageError(
            "--explain must name a number or a column",
            name,
            difflib.get_close_matches(wanted, known, cutoff=0.4) or sorted(known)[:12],
            f"{DICTIONARY} has all of them",
        )
    return "\n\n".join(textwrap.fill(text, WIDTH) for text in known[wanted])


def entries(text: str) -> dict[str, list[str]]:
    """The paragraphs of each name: of a bullet all names in bold, of a table's row its first cell."""
    found: dict[str, list[str]] = {}
    section = ""
    for block in re.split(r"\n(?=## |- \*\*|\| `|\n)", text):
        line = " ".join(block.split())
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("- **"):
            for name in re.findall(r"\*\*([^*]+)\*\*", line):
                found.setdefault(name.lower(), []).append(_plain(line.removeprefix("- ")))
        elif line.startswith("| `") and section.endswith(".csv"):
            name, unit, meaning, empty = (cell.strip() for cell in line.strip("|").split("|"))
            of = ", ".join(filter(None, [name.strip("`"), unit, f"in {section}"]))
            gaps = "never empty" if empty == "never" else f"empty when {_plain(empty)}"
            found.setdefault(name.strip("`"), []).append(f"{of}: {_plain(meaning)}; {gaps}.")
    return found


def _plain(text: str) -> str:
    """Without the marks of Markdown."""
    return re.sub(r"\*\*|`", "", text)

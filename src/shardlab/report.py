"""Write one HTML page on a folder of results: what it comes to in sentences, then tables and pictures.

The page needs no network and runs no script. The folder is one that shardlab.profile or shardlab.train wrote
(--results), or one with the CSV files of experiments.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from shardlab.ends import exit_code_of
from shardlab.errors import ExitCode, UsageError

PROG = "python -m shardlab.report"
NEEDS = ("jinja2", "matplotlib")


@dataclass(frozen=True)
class ReportConfig:
    """What is reported on, and where the page goes."""

    folder: Positional[Annotated[str, arg(metavar="RESULTS", help="Folder with the CSV files.")]]
    out: Annotated[str, arg(aliases=["-o"], metavar="FILE", help="The page.")] = "report.html"
    title: Annotated[str | None, arg(metavar="TEXT", help="Heading of the page.")] = None
    runs: Annotated[str | None, arg(metavar="ID,ID", help="Only these runs.")] = None
    last: Annotated[int | None, arg(metavar="N", help="Only the last N runs.")] = None
    quiet: Annotated[bool, arg(help="Do not say where the page is.")] = False

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise UsageError("--last must be at least 1", self.last)
        if self.last is not None and self.runs is not None:
            raise UsageError("--runs and --last are two ways to choose", self.runs, cure="give one of them")


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: _main(argv))


def _main(argv: list[str]) -> int:
    config = tyro.cli(ReportConfig, description=__doc__, args=argv, prog=PROG)
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        rule, got = f"the report needs {' and '.join(NEEDS)}", f"no {' and no '.join(missing)}"
        raise UsageError(rule, got, cure="pip install -e '.[report]'")
    from shardlab.reporting import render, sources

    page = sources.page(
        Path(config.folder), config.title, config.runs.split(",") if config.runs else None, config.last
    )
    out = Path(config.out)
    render.write(out, render.html(page))
    if not config.quiet:
        print(f"Report: {out} ({out.stat().st_size / 2**20:.1f} MiB, one file, no network)")
        print(f"First of it: {page.verdict[0]}")
    return int(ExitCode.OK)


if __name__ == "__main__":
    raise SystemExit(main())

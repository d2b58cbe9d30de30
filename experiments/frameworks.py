"""Does it matter to training which framework and which data path feed it, and what does each rung cost?

The ladder of the tutorial, plain PyTorch, DistributedDataParallel, Accelerate, Trainer, each trains the same small
network on MNIST for one epoch; below it every data path under DistributedDataParallel. Hypothesis: the test
accuracy is 0.97 or more everywhere; one copy is held by the paths that share, W copies by those that do not; at
less than a millisecond of computing a sample the data path shows as stall, and little else.

How to read the answer: a row a run, columns as in runs.csv. ``lines`` are those of a whole script of that rung
(`experiments/ladder/`), without comments, docstrings and what the scripts share; ``more_lines`` those that the
plain script does not have. The data path is a flag of shardlab.train and costs no line.

    python experiments/frameworks.py [--full] [--only NAME]       (--full: three runs of each, medians)
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from publishing import publish

LADDER = Path(__file__).parent / "ladder"
SCRIPTS = {"single": "plain.py", "ddp": "ddp.py", "accelerate": "accelerated.py", "trainer": "trainer.py"}
RUNGS = [("single", "distributed", 1), *((name, "distributed", 2) for name in ("ddp", "accelerate", "trainer"))]
PATHS = ["accelerate", "accelerate-shard", "accelerate-split", "keyed", "ring", "sharded"]


@dataclass(frozen=True)
class Row:
    """One configuration; medians where it ran several times."""

    name: str
    framework: str
    sampler: str
    store: str
    ranks: int
    accuracy: float
    loss: float
    samples_per_s: float
    stall_ratio: float
    copies: float | None
    copies_low: float | None
    copies_high: float | None
    lines: int
    more_lines: int
    runs: int


def code_lines(path: Path) -> list[str]:
    """The lines of a script as Python prints it again: no comments, no docstrings, one statement a line."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            node.body.pop(0)
    return [line.strip() for line in ast.unparse(tree).splitlines() if line.strip()]


def run(framework: str, sampler: str, ranks: int, shards: str) -> dict[str, Any]:
    """One run of the command: its JSON object."""
    dataset = shards if sampler == "sharded" else "mnist"
    command = [
        sys.executable, "-m", "shardlab.train", "--framework", framework, "--sampler", sampler, "--nproc", ranks,
        "--dataset", dataset, "--eval-dataset", "mnist:test", "--json", "--quiet",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as results:
        done = subprocess.run(
            [*map(str, command), "--results", results], stdout=subprocess.PIPE, text=True, check=True
        )
    return dict(json.loads(done.stdout))


def row(framework: str, sampler: str, ranks: int, found: list[dict[str, Any]]) -> Row:
    """The row of runs of one configuration."""
    def middle(column: str) -> Any:
        known = [each[column] for each in found if each[column] is not None]
        return statistics.median(known) if known else None

    plain, own = code_lines(LADDER / SCRIPTS["single"]), code_lines(LADDER / SCRIPTS[framework])
    columns = ("accuracy", "loss", "samples_per_s", "stall_ratio", "copies", "copies_low", "copies_high")
    more = [line for line in own if line not in plain]
    return Row(
        f"{framework} / {sampler}", framework, sampler, found[0]["store"], ranks,
        *(middle(column) for column in columns), len(own), len(more), len(found),
    )  # fmt: skip


def main() -> None:
    """Run and publish, a row at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="three runs of each")
    parser.add_argument("--only", default="", help="only configurations whose name contains this")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        shards = f"{folder}/shards"
        writes = [sys.executable, "-m", "shardlab.shard", "mnist", shards, "--quiet"]
        subprocess.run(writes, check=True, stdout=subprocess.DEVNULL)
        for framework, sampler, ranks in [*RUNGS, *(("ddp", path, 2) for path in PATHS)]:
            if options.only in f"{framework} / {sampler}":
                found = [run(framework, sampler, ranks, shards) for _ in range(3 if options.full else 1)]
                made = row(framework, sampler, ranks, found)
                rows.append(made)
                copies = "-" if made.copies is None else f"{made.copies:.2f}"
                print(
                    f"{made.name:28} {made.ranks} ranks  accuracy {made.accuracy:.4f}  "
                    f"{made.samples_per_s:7,.0f} samples/s  stall {made.stall_ratio:4.0%}  copies {copies}  "
                    f"{made.lines} lines, {made.more_lines} of its own", flush=True,
                )  # fmt: skip
                publish("frameworks.csv", rows, key="name")
        publish("frameworks.csv", rows, key="name" if options.only else None)


if __name__ == "__main__":
    main()

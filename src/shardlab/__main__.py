"""The ``shardlab`` command: ``shardlab profile ...`` is ``python -m shardlab.profile ...``."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "profile": "measure copies, speed and delivery of a data path",
    "train": "train a model through a data path, and measure the same",
    "compare": "measure several ways of feeding the ranks in turn, and name the best",
    "predict": "say whether a bigger job fits into memory, from a few small runs",
    "watch": "say what a job that is not ours holds in memory, and why",
    "report": "write the results of a folder as one page",
    "shard": "write a dataset as a folder of shards",
}


def main() -> int:
    """Run the sub-command; without one, or with a wrong one, list them."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        return int(importlib.import_module(f"shardlab.{name}").main(sys.argv[2:]))
    wanted_help = name in ("-h", "--help")
    out = sys.stdout if wanted_help else sys.stderr
    if name and not wanted_help:
        print(f"shardlab: no command {name!r}", file=out)
    print("usage: shardlab COMMAND [OPTIONS]; shardlab COMMAND --help", file=out)
    for command, summary in COMMANDS.items():
        print(f"  {command:10} {summary}", file=out)
    return 0 if wanted_help else 2


if __name__ == "__main__":
    raise SystemExit(main())

"""Which of the claims about memory, made for training on several ranks, hold with which configuration?

Hypothesis: native DDP holds a copy in each rank, forked workers add none of an array and some of a list. Accelerate's
samplers do too, dispatching or not, unless the store is changed; with `reader`, `shared`, `inherited` or `mmap`,
and with `keyed`, `ring` and `sharded` by themselves, a node holds one copy. Only `sharded` gives a rank its part
alone. Under a limit between what the two need, private copies are killed and one copy finishes. One rank or
two, plain PyTorch or DDP: the same losses at each step.

How to read the answer: below each claim a line for each configuration with what was measured, and whether the claim
is true with it; an arrow, and the answer to the claim, which is made of those. `copies` are of the node, with their
interval; one copy is an interval below 1.5. `reads` are by rank. `holds` is MiB of the shards that each rank
opened, and the most of them over the dataset, which may be a W-th and the shards at its two borders; where ranks do
not say, more copies than W such parts make answer the same with no. Shards on disk are not in memory when a run under
a limit begins. A run that failed and was not killed is not clear. `peak` is the most memory that the kernel counted
for all processes of a command, files read first included; `limit` is halfway between the peaks of private and shared
copies without one; a number after `killed` counts processes that the kernel killed. Losses differ by the largest
difference from the first line's, over it; below 1e-6 they are the same, and nothing is compared where that failed.

    python experiments/claims.py [--full] [--only LETTER]      (--full: four times the data, more configurations)
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import figure
from claim_rows import (
    Row,
    answered,
    conclusion,
    finished,
    line,
    one_copy,
    own_part,
    replicated,
    same_curve,
    word,
)
from claim_runs import GPU, Configuration, Lab, held, trained, under_a_limit
from commands import end_as_interrupted
from publishing import publish


@dataclass(frozen=True)
class Claim:
    """A claim, and with what it is asked; ``more`` only with --full."""

    letter: str
    text: str
    measure: Callable[[Lab, str, Sequence[Configuration]], Iterator[Row]]
    says: Callable[[Row, Sequence[Row]], bool | None]
    configurations: tuple[Configuration, ...]
    more: tuple[Configuration, ...] = ()


def fed(
    sampler: str, store: str, ranks: int = 4, more: str = "", note: str = "", data: str = "dataset"
) -> Configuration:
    """A configuration of ``shardlab.profile``."""
    name = f"{sampler} + {store} on {ranks} rank{'s'[: ranks - 1]}{note}"
    flags = f"--sampler {sampler} --store {store} --nproc {ranks} --dataset {{{data}}} --warmup 0 {more}"
    return Configuration(name, flags.strip())


def workers(data: str, method: str) -> Configuration:
    """Two ranks of two workers each."""
    kind = "list" if data == "records" else "array"
    more = f"--workers 2 --worker-start-method {method}" + (" --batch-size 256" if kind == "list" else "")
    made = fed("distributed", "private", 2, more, data=data)
    return replace(made, name=f"distributed on 2 x 2 workers ({kind} by {method})")


def limited(sampler: str, store: str, data: str = "larger") -> Configuration:
    """Four ranks on more data; copies are not asked for."""
    return fed(sampler, store, 4, "--no-control", data=data)


def training(name: str, flags: str, elsewhere: str = "") -> Configuration:
    """Twenty steps with a global batch of 64, and nothing random but the seed."""
    exact = "--dtype float64 --no-dropout --max-steps 20 --eval-dataset none --no-control"
    return Configuration(name, f"{flags} {exact}", elsewhere)


ACCELERATE = tuple(fed(name, "private") for name in ("accelerate", "accelerate-shard", "accelerate-split"))
CURED = (fed("accelerate", "reader"), fed("accelerate", "shared"))
ONE = (
    *(fed("distributed", store) for store in ("inherited", "shared", "mmap")),
    fed("keyed", "shared"), fed("ring", "shared"), fed("sharded", "mmap", data="shards"),
)  # fmt: skip
MORE = tuple(fed(name, "shared") for name in ("accelerate-shard", "accelerate-split"))

CLAIMS = (
    Claim(
        "a", "Native DDP replicates the dataset in memory", held, replicated,
        (
            *(fed("distributed", "private", ranks) for ranks in (1, 2, 4)),
            *(workers(data, method) for data in ("dataset", "records") for method in ("fork", "spawn")),
        ),
        (workers("dataset", "forkserver"), workers("records", "forkserver")),
    ),
    Claim(
        "b", "With Accelerate's samplers 4 ranks keep one copy in memory instead of four", held, one_copy,
        (*ACCELERATE, *CURED), MORE,
    ),
    Claim(
        "c", "In total there is only one full copy of the dataset", held, one_copy,
        (fed("distributed", "private"), *ACCELERATE, *CURED, *ONE), MORE,
    ),
    Claim(
        "d", "Subsets are split among the ranks: each holds only the segments that it needs", held, own_part,
        (
            fed("distributed", "private"), ACCELERATE[1],
            fed("sharded", "mmap", 2, data="shards"), fed("sharded", "mmap", data="shards"),
            fed("sharded", "mmap", 4, "--no-shuffle", " (in order)", "shards"),
        ),
    ),
    Claim(
        "e", "Larger datasets train on one machine without memory exploding", under_a_limit, finished,
        (
            limited("distributed", "private"), limited("distributed", "shared"), limited("keyed", "shared"),
            limited("ring", "shared"), limited("distributed", "mmap"), limited("sharded", "mmap", "larger_shards"),
        ),
        (limited("accelerate", "private"), limited("accelerate", "reader")),
    ),
    Claim(
        "f", "The same code runs in one process, in several, on several hosts, and on a GPU", trained, same_curve,
        (
            training("single on 1 rank", "--framework single --nproc 1 --batch-size 64 --device cpu"),
            training("ddp on 1 rank", "--framework ddp --nproc 1 --batch-size 64 --device cpu"),
            training("ddp on 2 ranks", "--framework ddp --nproc 2 --batch-size 32 --device cpu"),
            training("single on a GPU", f"--framework single --nproc 1 --batch-size 64 {GPU}"),
            training("ddp on two hosts", "--framework ddp", "see tests/launch/test_train_launchers.py"),
        ),
        (
            training("accelerate on 2 ranks", "--framework accelerate --nproc 2 --batch-size 32 --device cpu"),
            training("ddp on 4 ranks", "--framework ddp --nproc 4 --batch-size 16 --device cpu"),
        ),
    ),
)  # fmt: skip


def main() -> None:
    """Answer the claims in turn; print and publish each as it is answered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="four times the data, more configurations")
    parser.add_argument("--only", default="", help="claims of these letters ('ad'); the others stay as they are")
    parser.add_argument("--mib", type=int, help="MiB of the dataset, to try it out; not published")
    options = parser.parse_args()
    end_as_interrupted()
    with tempfile.TemporaryDirectory(prefix="claims-") as folder:
        lab = Lab(Path(folder), options.mib or (1024 if options.full else 256))
        rows: list[Row] = []
        for claim in CLAIMS:
            if claim.letter in (options.only or "abcdef"):
                rows += asked(lab, claim, options.full)
                if not options.mib:
                    publish("claims.csv", rows, key="name")
    if not options.mib:
        publish("claims.csv", rows, key="name" if options.only else None)
        draw()


def asked(lab: Lab, claim: Claim, full: bool) -> list[Row]:
    """Ask with all configurations, print each as it ends, and then the answer."""
    print(f"{claim.letter}  {claim.text}", flush=True)
    rows: list[Row] = []
    title = f"{claim.letter}: {claim.text}"
    for measured in claim.measure(lab, title, claim.configurations + (claim.more if full else ())):
        says = claim.says(measured, [*rows, measured])
        rows.append(replace(measured, answer=word(measured, says)))
        print(line(rows[-1]), flush=True)
    rows = answered(rows)
    print(conclusion(rows[-1]), flush=True)
    return rows


def draw() -> None:
    """Copies of each configuration that is published, and where one copy is."""
    frame = figure.table("claims.csv").dropna(subset=["copies"]).drop_duplicates("configuration")
    drawing, (ax,) = figure.panels(1, height=0.28 * len(frame) + 1)
    spread = [frame["copies"] - frame["copies_low"], frame["copies_high"] - frame["copies"]]
    colours = [figure.COLOURS[2] if high < 1.5 else figure.COLOURS[1] for high in frame["copies_high"]]
    ax.barh(frame["configuration"], frame["copies"], xerr=spread, color=colours, capsize=2)
    ax.axvline(1, color="#000000", linewidth=0.8)
    ax.invert_yaxis()
    ax.set_xlabel("copies of the dataset on the node (line: one copy)")
    figure.save(drawing, "claims.svg")


if __name__ == "__main__":
    main()

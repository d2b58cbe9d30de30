"""What did others publish, and what comes out here? One table of all that was measured again.

Hypothesis: on two cores and without an accelerator every published ratio has the same direction, and most the same
magnitude; seconds and bytes do not carry over from one machine to another, ratios do.

How to read the answer: nothing is measured here, the rows come from tables that other experiments published, named in
``table``. Where ``measured`` and ``published`` are ratios of the same two things, ``agrees`` says whether direction
and magnitude (within a factor of two) do; ``published`` is empty where the source says which is more and gives no
figure. Where the source has no figure of the same two things, ``nearest_published`` is the one that comes nearest and
``why`` says how its things differ: these two are not compared.

    python experiments/beside_published.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd

from field import Published, agreement
from publishing import OUT, publish
from transport import SPDL

RECORDS = "https://github.com/ppwwyyxx/RAM-multiprocess-dataloader, logs"
SAMPLER = "https://github.com/pytorch/pytorch/issues/51841"
START_UP = "https://github.com/roboflow/rf-detr/pull/1396"
OTHER_RANKS = "there 1 process and its 4 workers, here 4 ranks of 2, and fewer records: interpreters weigh more"
AFTER_AN_EPOCH = {  # memory over that of serialised records under fork, and how the two differ from ours
    ("list", "fork"): (9830 / 1622, OTHER_RANKS),
    ("serialised", "forkserver"): (1735 / 1622, f"there in a tensor, here in an array; {OTHER_RANKS}"),
    ("serialised", "spawn"): (2286 / 1622, f"there in a tensor, here in an array; {OTHER_RANKS}"),
}
OWN_OVER_SHARED = 3841 / 2569
TWO_RANKS = {"kind": "array", "ranks": 2, "workers": 2, "worker_start_method": "forkserver"}
LARGEST = 32 << 20  # bytes of a batch in SPDL's table


@dataclass(frozen=True)
class Row:
    """One ratio, here and elsewhere; ``published`` or ``nearest_published``, never both."""

    name: str
    measured: float
    published: float | None
    agrees: str
    nearest_published: float | None
    why: str
    source: str
    table: str


def rows() -> Iterator[Row]:
    """From every table that is there."""
    for table, rows_of in TABLES.items():
        if (OUT / f"{table}.csv").exists():
            yield from rows_of(pd.read_csv(OUT / f"{table}.csv"))


def told(frame: pd.DataFrame, table: str, value: str) -> Iterator[Row]:
    """Rows that have their source beside them, and the same two things."""
    for row in frame[frame["source"].notna() & frame["agrees"].notna() & frame[value].notna()].to_dict("records"):
        published = None if pd.isna(row["published"]) else float(row["published"])
        name = f"{table}: {row['name']}"
        yield Row(name, row[value], published, row["agrees"], None, "", row["source"], f"{table}.csv")


def nearest(name: str, measured: float, published: float, why: str, source: str, table: str) -> Row:
    """A row whose source has something else."""
    return Row(name, measured, None, "", published, why, source, f"{table}.csv")


def of_caches(frame: pd.DataFrame) -> Iterator[Row]:
    """Of a cache that evicts what is published is about its misses, of the other about its hits."""
    for policy, value in (("LRU", "misses_over_static"), ("static", "hit_ratio")):
        yield from told(frame[frame["policy"] == policy], "cache_size", value)


def of_dispatch(frame: pd.DataFrame) -> Iterator[Row]:
    """Accelerate's own two ways."""
    yield from told(frame[frame["sampler"] == "accelerate-shard"], "dispatch_or_shard", "over_dispatch")


def of_transport(frame: pd.DataFrame) -> Iterator[Row]:
    """What a DataLoader's worker returns, one form over another; the ring of the source is not ours."""
    large = frame[frame["batch_bytes"] == LARGEST].set_index("form")
    for form, row in large[large["published_over_bytes"].notna()].iterrows():
        said = Published(SPDL, float(row["published_over_bytes"]))
        agrees = agreement(float(row["over_bytes"]), said)
        yield Row(f"transport: {form} / bytes, 32 MiB", row["over_bytes"], said.ratio, agrees, None, "", SPDL,
                  "transport.csv")  # fmt: skip
    for form, row in large[large["published"].notna()].iterrows():
        yield nearest(f"transport: ring / {form}, 32 MiB", row["ring_over"], float(row["published"]),
                      "there its own ring (arena), here shardlab's", SPDL, "transport")  # fmt: skip


def of_records(frame: pd.DataFrame) -> Iterator[Row]:
    """Memory of all processes after an epoch over that of serialised records under fork."""
    after = frame.set_index(["residency", "worker_start_method"])["pss_after_bytes"]
    for key, (published, why) in AFTER_AN_EPOCH.items():
        measured = float(after[key] / after["serialised", "fork"])
        name = f"records: {', '.join(key)} / serialised, fork: memory"
        yield nearest(name, measured, published, why, RECORDS, "records_table")


def of_copies(frame: pd.DataFrame) -> Iterator[Row]:
    """Memory of two ranks with copies of their own over that with one in common, interpreters included."""
    found = frame[(frame[list(TWO_RANKS)] == pd.Series(TWO_RANKS)).all(axis=1)].set_index("store")["used_bytes"]
    if {"private", "shared"} <= set(found.index):
        why = "there 505 MiB of records and 4 workers, here 256 MiB of images and 2: interpreters weigh more"
        yield nearest("copies: 2 ranks, own copies / one shared: memory", float(found["private"] / found["shared"]),
                      OWN_OVER_SHARED, why, RECORDS, "copies_by_start")  # fmt: skip


def of_indices(frame: pd.DataFrame) -> Iterator[Row]:
    """`DistributedSampler` over `keyed`, at the largest length that both were measured at."""
    stock = frame[frame["sampler"] == "DistributedSampler"].nlargest(1, "n").iloc[0]
    ours = frame[(frame["sampler"] == "keyed") & (frame["form"] == "ints") & (frame["n"] == stock["n"])].iloc[0]
    what = f"DistributedSampler / keyed, {stock['n']:.0e} samples"
    memory = float(stock["rss_peak_bytes"] / ours["rss_peak_bytes"])
    yield nearest(f"{what}: memory", memory, 1 / 0.02, "there over a tensor in the place of the list", SAMPLER,
                  "index_stream")  # fmt: skip
    start = float(stock["first_index_s"] / ours["first_index_s"])
    yield nearest(f"{what}: time to the first index", start, 19.9 / 0.012,
                  "there start-up with an index of annotations in each rank, over a mapped one", START_UP,
                  "index_stream")  # fmt: skip


TABLES: dict[str, Callable[[pd.DataFrame], Iterator[Row]]] = {
    "records_table": of_records,
    "copies_by_start": of_copies,
    "index_stream": of_indices,
    "cache_size": of_caches,
    "shipping": lambda frame: told(frame, "shipping", "over_one_worker"),
    "transport": of_transport,
    "dispatch_or_shard": of_dispatch,
    "sampling_errors": lambda frame: told(frame, "sampling_errors", "measured"),
}


def main() -> None:
    """Print and publish the table."""
    found = list(rows())
    for row in found:
        published = row.nearest_published if row.published is None else row.published
        said = "-" if published is None else f"{published:,.2f}"
        print(f"{row.name[:64]:64} {row.measured:10,.2f} {said:>9}  {row.agrees or f'not the same: {row.why}'}")
    publish("beside_published.csv", found)


if __name__ == "__main__":
    main()

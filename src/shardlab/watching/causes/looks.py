"""Memory that is no copy of the dataset, though it looks like one in some figure."""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.measure.census.result import FILE, Census
from shardlab.watching.causes import copied, people
from shardlab.watching.facts import HOLDS, Cause, Facts
from shardlab.words import mib

LEAST_BYTES = 64 << 20


def causes(facts: Facts) -> Iterator[Cause]:
    """Batches on their way, files that are mapped, equal weights, and RSS that counts a page for each process."""
    flying = facts.batch_bytes
    cached = sum(one.by_kind.get(FILE, 0) for one in facts.members if one.left_s is None)
    if flying >= LEAST_BYTES // 2:
        yield Cause(
            "in-flight-batches", f"{mib(flying)} MiB of shared memory hold batches that workers made", flying,
            "a lower prefetch_factor, fewer workers or a smaller batch: they multiply", HOLDS,
        )  # fmt: skip
    if cached >= LEAST_BYTES:
        yield Cause(
            "page-cache", f"{mib(cached)} MiB are pages of mapped files, one copy for all, given back at need",
            cached, "none is needed: RSS counts them in each process, PSS once", HOLDS,
        )  # fmt: skip
    yield from _equal_besides(facts)
    yield from _counted_again(facts)


def _equal_besides(facts: Facts) -> Iterator[Cause]:
    """What processes repeat of each other beyond one dataset in each, whose size is known."""
    if facts.census is None or not facts.dataset_bytes:
        return
    found = copied.repeats(facts.census)
    again = sum(r.duplicate_bytes for r in found) - sum(r.duplicate_bytes for r in copied.of_dataset(facts))
    if again < LEAST_BYTES // 2:
        return
    pids = sorted({pid for repeat in found for pid in copied.holders(repeat)})
    members = people.by_pid(facts)
    who = people.ranks(members[pid].rank for pid in pids if pid in members)
    yield Cause(
        "other-equal-memory",
        f"processes of {who} repeat {mib(again)} MiB of each other beyond one dataset in each: the weights and "
        "gradients of a model, say, which are no copies of the dataset",
        again, "none for a model that each rank trains by design; a dataset that a process holds twice needs one",
        HOLDS, tuple(pids),
    )  # fmt: skip


def _counted_again(facts: Facts) -> Iterator[Cause]:
    """What a sum of RSS counts more than once: data by content, everything by RSS and PSS where that was not read."""
    if facts.census is not None:
        again, what = _data_counted_again(facts, facts.census), "of data"
    else:
        again, what = _beyond_pss(facts), "(programs among it)"
    if again >= LEAST_BYTES:
        yield Cause(
            "rss-counts-shared-memory",
            f"the sum of RSS counts {mib(again)} MiB {what} more than once, as several processes share it", again,
            "add up PSS instead: a page that k processes share counts 1/k in each", HOLDS,
        )  # fmt: skip


def _data_counted_again(facts: Facts, census: Census) -> int:
    """Bytes of data, files apart, that a sum of RSS counts beyond what is there."""
    counted = sum(number * size for number, size in census.bytes_by_holders.items())
    files = sum(held.resident_bytes.get(FILE, 0) for held in census.by_process.values())
    cached = sum(one.by_kind.get(FILE, 0) for one in facts.members if one.left_s is None)
    again = counted - sum(census.bytes_by_holders.values()) - census.duplicate_bytes
    return again - max(files - cached, 0)


def _beyond_pss(facts: Facts) -> int:
    """The same of all memory, by what the kernel says of those processes whose PSS may be read."""
    last = [one.last for one in facts.members if one.left_s is None and one.last is not None]
    known = [(m.rss_bytes, m.pss_bytes) for m in last]
    return sum(rss - pss for rss, pss in known if rss is not None and pss is not None)

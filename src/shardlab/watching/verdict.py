"""What is said of a job: copies first, then why, then what it cost to find out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from shardlab.measure.census.result import Census
from shardlab.watching import causes as reasons_why
from shardlab.watching.facts import HOLDS, Cause, Facts
from shardlab.watching.permits import Refusal
from shardlab.words import many, mib, significant

NO_CENSUS = "no census was taken"


def sentences(facts: Facts, causes: Sequence[Cause], refused: Sequence[Refusal], why: str = "") -> Iterator[str]:
    """For a person, most important first; ``why`` says why there is no census where there is none."""
    yield from _copies(facts, causes)
    census = facts.census
    if census is None:
        yield f"Content was not compared: {why or NO_CENSUS}."
    else:
        yield _duplicates(census)
    for cause in causes:
        size = "" if cause.bytes is None else f", {mib(cause.bytes)} MiB"
        when = "" if cause.since_s is None else f", since {cause.since_s:.0f} s"
        certain = "" if cause.certainty == HOLDS else "Likely: "
        yield f"{certain}{cause.name}{size}{when}: {cause.evidence}. Cure: {cause.cure}."
    if census is not None:
        yield cost(census)
    if facts.machine_kills:
        ended = many(facts.machine_kills, "process", "processes")
        yield (
            f"The kernel ended {ended} of this machine for lack of memory, "
            f"{facts.killed_s or facts.t_s:.0f} s after the watch began; no cgroup tells whether of this job."
        )
    if facts.unreadable:
        yield f"{many(len(facts.unreadable), 'process', 'processes')} could not be read."
    yield from (refusal.sentence for refusal in refused)


def killed(facts: Facts) -> str:
    """Of a job that SIGKILL ended, or of which the kernel ended a process: who did, as far as that is told."""
    when = facts.killed_s or facts.t_s
    if facts.out_of_memory_kills:
        return f"The kernel ended a process of this job for lack of memory, {when:.0f} s after its start."
    if facts.out_of_memory_kills is not None:
        told = "its cgroup counts no kill for lack of memory"
    elif facts.machine_kills:
        told = "the kernel ended a process of this machine for lack of memory, likely it"
    elif facts.machine_kills is not None:
        told = "the kernel ended no process of this machine for lack of memory"
    else:
        told = "the kernel does not tell whether for lack of memory"
    return f"The job was ended by SIGKILL after {facts.t_s:.0f} s; {told}."


def _copies(facts: Facts, causes: Sequence[Cause]) -> Iterator[str]:
    found = reasons_why.copies(facts, tuple(causes))
    if found is None:
        return
    value, certainty = found
    holds = "holds" if certainty == HOLDS else "likely holds"
    yield f"This job {holds} {significant(value)} copies of the {mib(facts.dataset_bytes)} MiB."


def _duplicates(census: Census) -> str:
    error = f" (give or take {mib(census.error_bytes)})" if census.error_bytes else ""
    held = ", ".join(
        f"{mib(size)} MiB by {number}" for number, size in sorted(census.bytes_by_holders.items()) if size >= 1 << 20
    )
    return (
        f"{mib(census.duplicate_bytes)} MiB{error} repeat what another process holds, {census.t_s:.0f} s after the "
        f"watch began; content by the number of processes that hold it: {held or 'less than 1 MiB'}."
    )


def cost(census: Census) -> str:
    """What a census took."""
    sampled = "" if census.sampled_ratio == 1 else f", {census.sampled_ratio:.1%} of the content sampled"
    counted = many(census.processes, "process", "processes")
    return (
        f"Census of {counted}: {census.wall_s:.2f} s, {census.cpu_s:.2f} s of CPU, "
        f"{mib(census.read_bytes)} MiB read{sampled}; only hashes were kept."
    )


def as_object(
    facts: Facts, causes: Sequence[Cause], refused: Sequence[Refusal], more: dict[str, Any], why: str
) -> dict[str, Any]:
    """The object that ``--json`` prints: what is not known is null, and ``reasons`` says why."""
    census, found = facts.census, reasons_why.copies(facts, tuple(causes))
    reasons: dict[str, str] = {f"process {pid}": text for pid, text in facts.unreadable.items()}
    for refusal in refused:  # one thing may be lost of several processes for several reasons
        said = reasons.get(refusal.lost)
        reasons[refusal.lost] = f"{said} {refusal.sentence}" if said else refusal.sentence
    if census is None:
        reasons |= dict.fromkeys(("duplicate_bytes", "bytes_by_holders", "census"), why or NO_CENSUS)
    if found is None:
        reasons["copies"] = why or NO_CENSUS if facts.dataset_bytes else "--dataset-bytes was not given"
    return {
        "copies": None if found is None else found[0],
        "copies_certainty": None if found is None else found[1],
        "duplicate_bytes": None if census is None else census.duplicate_bytes,
        "bytes_by_holders": None if census is None else {str(k): v for k, v in census.bytes_by_holders.items()},
        "processes": sum(one.left_s is None for one in facts.members) if census is None else census.processes,
        "unreadable": len(facts.unreadable),
        "causes": [
            {
                "name": c.name, "evidence": c.evidence, "bytes": c.bytes, "cure": c.cure, "certainty": c.certainty,
                "pids": list(c.pids), "since_s": c.since_s,
            }
            for c in causes
        ],
        "census": None if census is None else {
            "t_s": census.t_s, "error_bytes": census.error_bytes, "sampled_ratio": census.sampled_ratio,
            "read_bytes": census.read_bytes, "wall_s": census.wall_s, "cpu_s": census.cpu_s,
            "zero_bytes": census.zero_bytes, "frames_known": census.frames_known,
            "by_process": {str(pid): asdict(held) for pid, held in census.by_process.items()},
        },
        "limits": [
            {"name": one.name, "where": one.where, "used": one.used, "limit": one.limit, "unit": one.unit}
            for one in facts.limits
        ],
        "out_of_memory_kills": facts.out_of_memory_kills,
        "machine_out_of_memory_kills": facts.machine_kills,
        **more,
        "reasons": reasons,
    }  # fmt: skip

"""Which ranks of the node still take part in a ring, and what it means for the others where one does not."""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path

from shardlab.ring.memory import TAKEN, Ring


class Member(IntEnum):
    """Places in the words about a rank."""

    PID = 0
    STARTED = 1  # by the kernel's clock: a process id alone may belong to another process by now
    NAMESPACE = 2  # in which the id counts
    STATE = 3
    TAKEN = TAKEN  # the last turn that the rank took


class State(IntEnum):
    """What a rank is doing. A process that ends between epochs may simply be through."""

    ABSENT = 0
    BETWEEN = 1
    READING = 2
    LEFT = 3
    MEETING = 4  # it waits for the others to begin an epoch


def enter(ring: Ring, rank: int) -> None:
    """This process is the rank."""
    words = ring.members[rank]
    words[Member.PID] = os.getpid()
    words[Member.STARTED], words[Member.NAMESPACE] = _started(os.getpid()) or 0, _namespace()
    words[Member.STATE] = State.BETWEEN


def missing(ring: Ring, rank: int, turn: int | None) -> str:
    """Why ``rank`` waits in vain for a turn, or for the others before an epoch (None); empty where it does not.

    Who has left let go of all that it took: turns that need no more of it still come.
    """
    for other in range(ring.shape.ranks):
        state, taken = ring.members[other][Member.STATE], ring.members[other][Member.TAKEN]
        if other == rank or state == State.ABSENT:
            continue
        dead = state != State.LEFT and _is_dead(ring, other)
        if dead and state == State.READING:
            return died(ring, other)
        needs_more = turn is not None and turn > taken + ring.shape.slots
        if (dead or state == State.LEFT) and (turn is None or needs_more):
            return f"rank {other} of the node left the ring, and the others wait for it"
        if state == State.MEETING and needs_more:
            return f"rank {other} of the node left an epoch that rank {rank} still reads, and begins another"
    return ""


def dead_while_reading(ring: Ring) -> str:
    """The first rank that died in the middle of an epoch, in words; empty where there is none."""
    for rank in range(ring.shape.ranks):
        if ring.members[rank][Member.STATE] == State.READING and _is_dead(ring, rank):
            return died(ring, rank)
    return ""


def died(ring: Ring, rank: int) -> str:
    """In words."""
    return (
        f"rank {rank} of the node (process {ring.members[rank][Member.PID]}) died in the middle of an epoch"
    )


def _is_dead(ring: Ring, rank: int) -> bool:
    words = ring.members[rank]
    if words[Member.NAMESPACE] != _namespace() or not words[Member.STARTED]:
        return False  # its id means nothing here
    return bool(_started(int(words[Member.PID])) != words[Member.STARTED])


def _started(pid: int) -> int | None:
    """Clock ticks after boot at which a process started; None where it is gone, buried or not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0

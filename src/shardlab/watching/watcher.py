"""The loop: follow the processes, sample their memory, compare content when it is time, say what is found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from shardlab.measure import tree
from shardlab.measure.census.result import Census, Subject
from shardlab.measure.census.take import take
from shardlab.measure.cgroup import CGROUP
from shardlab.measure.procfs import PROC
from shardlab.watching import batches, causes, freed
from shardlab.watching.config import WatchConfig
from shardlab.watching.facts import Cause, Facts, Limit, Member
from shardlab.watching.history import History
from shardlab.watching.jobtree import JobTree
from shardlab.watching.limits import OF_GROUPS, Limits
from shardlab.watching.permits import Refusal, refusals

TICK_S = 0.1
REFRESH_S = 0.5
SHARE = 300
"""Ticks and looks at the tree take at most one in so many seconds each: a third of a percent of a core."""

HEEDS_S = 0.5
"""A signal, or the end of the job, is heeded within this time."""

CENSUS_SHARE = 10
"""After a census so many times its duration passes before another one, however memory grows."""


class Watcher:
    """Watches the processes below ``roots``. ``say`` gets each census as it is taken."""

    def __init__(
        self,
        config: WatchConfig,
        roots: tuple[int, ...],
        history: History,
        say: Callable[[Facts, tuple[Cause, ...]], None],
        root: Path = PROC,
        cgroup_root: Path = CGROUP,
    ) -> None:
        self.config, self.history = config, history
        self.wanted = False  # a census, by signal
        self.census: Census | None = None
        self.members: list[Member] = []
        self.start_cpu_s, self.census_cpu_s = time.process_time(), 0.0
        self._say = say
        self._root, self._cgroup_root = root, cgroup_root
        self._tree = JobTree(roots, root, skip=(os.getpid(),))
        self._limits = Limits(root, cgroup_root)
        self._unreadable: dict[int, str] = {}
        self._batch_bytes = 0
        self._retained: dict[int, int] = {}
        self._at = sorted(config.census_at)
        self._held_then = 0
        self._killed_s: float | None = None
        self.why = ""  # there is no census though one was tried
        self._fullest: dict[tuple[str, str], Limit] = {}  # of each cgroup, when it was fullest
        self._next_tick = self._next_refresh = self._next_census = 0.0
        self._last: Facts | None = None
        self.refused: tuple[Refusal, ...] = ()  # what the kernel does not let be known of those that live

    def step(self) -> float:
        """Do what is due now. Returns how many seconds nothing will be."""
        now = self.history.t_s
        if now >= self._next_refresh:
            self._refresh()
        if now >= self._next_tick:
            took = self.history.tick()
            self._next_tick = self.history.t_s + max(TICK_S, SHARE * took)
        if self.members and self._census_is_due(self.history.t_s):
            self.take_census()
        due = min(self._next_tick, self._next_refresh, *self._at[:1])
        return min(max(due - self.history.t_s, 0.0), HEEDS_S)

    def is_alive(self) -> bool:
        """Whether any member lives; as of the last look, renewed where that says no."""
        if not any(tree.is_alive(m.pid, m.start_ticks, self._root) for m in self.members):
            self._refresh()
        return bool(self.members)

    def take_census(self) -> None:
        """Compare content now, and say what it shows."""
        began, cpu_began, self.wanted = time.monotonic(), time.process_time(), False
        self._refresh()
        self._ask()
        self.history.read_all()
        counted = [m for m in self.members if m.role != "tracker"]
        free = freed.of_members(counted, self._root)
        subjects = [
            Subject(m.pid, m.family, m.rank, m.role == "worker", free[m.pid].pages if m.pid in free else ())
            for m in counted
        ]
        workers = {m.pid for m in counted if m.role == "worker"}
        self._batch_bytes = batches.on_their_way([m.pid for m in counted], workers, self._root)
        census = take(subjects, t_s=self.history.t_s, limit_s=self.config.census_seconds, root=self._root)
        self.why = "" if census.processes else "; ".join(sorted(set(census.unreadable.values())))
        self.census = census if census.processes else self.census
        self._retained = {m.pid: free[m.pid].retained_bytes(m.start_method) for m in counted if m.pid in free}
        self._unreadable = census.unreadable
        self._held_then = self.history.held()
        self._next_census = self.history.t_s + CENSUS_SHARE * (time.monotonic() - began)
        self.census_cpu_s += time.process_time() - cpu_began
        self._last = self._facts()
        self._say(self._last, causes.found(self._last))

    def facts(self) -> Facts:
        """What is known: with the census as it was taken, the members of then and what has happened since."""
        now = self._facts()
        if self._last is None:
            return replace(now, limits=(*self._fullest.values(), *_others(now.limits)))
        limits = (*self._fullest.values(), *_others(self._last.limits))
        return replace(now, members=self._last.members, limits=limits)

    def limits(self) -> tuple[Limit, ...]:
        """Limits of the job's cgroups now; cheap."""
        return tuple(self._limits.of_groups())

    def _ask(self) -> None:
        if self.members:
            self.refused = refusals([m.pid for m in self.members], self._root, self._cgroup_root)

    def _facts(self) -> Facts:
        pids = [m.pid for m in self.members]
        unreadable = dict(self._tree.unreadable)
        unreadable |= self._unreadable
        return Facts(
            self.history.t_s, self.history.seen(), self._limits.of(pids), self.census, self.config.size,
            unreadable, *self._kills(), self._killed_s, self._batch_bytes, self._retained,
        )  # fmt: skip

    def _kills(self) -> tuple[int | None, int | None]:
        """Of the job's cgroups, and of the machine where these do not tell."""
        own = self._limits.kills()
        return own, self._limits.kills_of_the_machine() if own is None else None

    def _refresh(self) -> None:
        began = time.process_time()  # on a busy machine the clock runs on while others compute
        self.members = self._tree.refresh()
        self.history.follow(self.members)
        self._limits.look(m.pid for m in self.members)
        if self._killed_s is None and any(self._kills()):
            self._killed_s = self.history.t_s
        for limit in self._limits.of_groups():
            before = self._fullest.get((limit.name, limit.where))
            if before is None or limit.used > before.used:
                self._fullest[limit.name, limit.where] = limit
        if self._last is None:
            self._ask()
        self._next_refresh = self.history.t_s + max(REFRESH_S, SHARE * (time.process_time() - began))

    def _census_is_due(self, now: float) -> bool:
        if self._at and now >= self._at[0]:
            self._at.pop(0)
            return True
        if self.wanted:
            return True
        if self.config.census == "never" or now < self._next_census or not self.history.settled():
            return False
        return self._last is None or self.history.grown(self._held_then)


def _others(limits: Iterable[Limit]) -> Iterable[Limit]:
    """Those that are not of a cgroup."""
    return (limit for limit in limits if limit.name not in OF_GROUPS)

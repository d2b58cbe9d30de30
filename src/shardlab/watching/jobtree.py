"""The processes of any job: who belongs to it, what each is, and how it came to be.

::

    sh -c ...                                  launcher
    '- torchrun ...                            agent
       |- train.py          RANK=0             rank 0
       |  |- pt_data_worker                    worker 0, worker 1: forked, they share memory with the rank
       |  |- forkserver - pt_data_worker       worker 2: of the forkserver's family
       |  '- resource tracker                  tracker
       '- train.py          RANK=1             rank 1

A rank says so in its environment (RANK, which its workers inherit: the topmost process that has it is the rank).
Without it the processes that multiprocessing started below the script are the ranks, DataLoader workers apart, and
where there are none the script is rank 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from shardlab.measure import procfs, tree
from shardlab.measure.procfs import PROC, Stat
from shardlab.watching import roles
from shardlab.watching.facts import Member
from shardlab.watching.roles import RANK, WORKER_NAME, Known


@dataclass
class JobTree:
    """Follows the processes ``roots`` and all that descend from them; ``skip`` are left out with theirs.

    ``unreadable`` has the reason for each process whose environment or command line may not be read.
    """

    roots: tuple[int, ...]
    root: Path = PROC
    skip: tuple[int, ...] = ()
    unreadable: dict[int, str] = field(default_factory=dict)
    _known: dict[tuple[int, int], Known] = field(default_factory=dict)
    _members: list[Member] = field(default_factory=list)
    _said: bool = False  # a rank has said so: who says nothing is none
    _next_number: dict[int | None, int] = field(default_factory=dict)  # of a worker, by rank
    _given_back: dict[int | None, list[int]] = field(default_factory=dict)  # numbers of what proved to be no worker

    def refresh(self) -> list[Member]:
        """The members that live now, parents first."""
        # one that lost its parent is still of the job, and so are those that it starts
        orphans = [m.pid for m in self._members if tree.is_alive(m.pid, m.start_ticks, self.root)]
        found = tree.descendants([*self.roots, *orphans], self.root, self.skip)
        living = {pid: stat for pid, stat in found.items() if stat.state not in ("Z", "X", "x")}
        known = {pid: self._look(pid, stat, living) for pid, stat in living.items()}
        self._known = {(pid, stat.start_ticks): known[pid] for pid, stat in living.items()}
        self._members = self._classified(living, known)
        return self._members

    def _look(self, pid: int, stat: Stat, living: dict[int, Stat]) -> Known:
        key = (pid, stat.start_ticks)
        known = self._known.get(key)
        # a process may become another program, which has a new stack, and no words for a moment; it has neither
        # while it ends, and stays what it was
        if known is None or not known.cmdline or stat.start_stack not in (0, known.stat.start_stack):
            if known is not None and known.number is not None:  # it was on its way to become what it is now
                before = next((m.rank for m in self._members if m.pid == pid), None)
                self._given_back.setdefault(before, []).append(known.number)
            known = self._known[key] = Known(stat, *self._read(pid))
        if not known.is_worker and stat.ppid in living:  # a worker takes its name a moment after it was made
            known.is_worker = self._text(pid, "comm").strip() == WORKER_NAME
        return known

    def _read(self, pid: int) -> tuple[str, int | None]:
        try:
            cmdline = procfs.read(pid, "cmdline", self.root).replace("\0", " ").strip()
            match = RANK.search(procfs.read(pid, "environ", self.root))
        except ProcessLookupError:
            return "", None
        except OSError as error:
            self.unreadable[pid] = f"its environment may not be read: {error.strerror or error}"
            return tree.read_cmdline(pid, self.root).strip(), None
        return cmdline, int(match[1]) if match else None

    def _text(self, pid: int, name: str) -> str:
        try:
            return procfs.read(pid, name, self.root)
        except OSError:
            return ""

    def _classified(self, living: dict[int, Stat], known: dict[int, Known]) -> list[Member]:
        kept = self._orphans(living)
        methods = roles.start_methods(living, known) | {pid: old.start_method for pid, old in kept.items()}
        servants = roles.servants(living, known, methods)
        of_orphans = {pid for pid in living if pid in kept or any(a in kept for a in roles.ancestors(pid, living))}
        before = {m.pid: m.rank for m in self._members if m.role == "rank" and m.rank is not None}
        self._said |= any(of.rank is not None for of in known.values())
        launched = {m.pid for m in self._members if self._said and m.role in ("launcher", "agent")}
        others = {pid: stat for pid, stat in living.items() if pid not in of_orphans}
        ranks = roles.said_ranks(others, known, servants)
        if not self._said:
            ranks = roles.likely_ranks(others, known, methods, servants, before)
        above = {parent for pid in ranks for parent in roles.ancestors(pid, living)} - set(ranks) | launched
        members: dict[int, Member] = {}
        for pid, stat in living.items():
            if pid in kept:
                members[pid] = replace(kept[pid], ppid=stat.ppid)
                continue
            parent = members.get(stat.ppid)
            shares = methods[pid] in ("fork", "forkserver") and parent is not None
            rank = ranks.get(pid, parent.rank if parent else None)
            role = servants.get(pid) or roles.role(pid, rank, ranks, above, methods, known)
            members[pid] = Member(
                pid, stat.start_ticks, stat.ppid, role, rank, None, methods[pid],
                parent.family if shares and parent else pid, roles.name(known[pid].cmdline),
            )  # fmt: skip
        return self._numbered(list(members.values()), known)

    def _orphans(self, living: dict[int, Stat]) -> dict[int, Member]:
        """Members that outlived their parent: they stay what they were."""
        left = [m for m in self._members if m.pid in living and living[m.pid].start_ticks == m.start_ticks]
        return {m.pid: m for m in left if m.pid not in self.roots and living[m.pid].ppid not in living}

    def _numbered(self, members: list[Member], known: dict[int, Known]) -> list[Member]:
        """Workers of a rank numbered in the order of their start; a number is given once."""
        fresh = [m for m in members if m.role == "worker" and known[m.pid].number is None]
        for member in sorted(fresh, key=lambda m: (m.start_ticks, m.pid)):
            if given_back := self._given_back.get(member.rank):
                known[member.pid].number = given_back.pop(given_back.index(min(given_back)))
                continue
            number = self._next_number.get(member.rank, 0)
            known[member.pid].number, self._next_number[member.rank] = number, number + 1
        return [replace(m, worker=known[m.pid].number if m.role == "worker" else None) for m in members]

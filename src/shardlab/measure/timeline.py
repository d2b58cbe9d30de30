"""Memory over time: resident bytes of every process often and cheaply, PSS in turn and seldom."""

from __future__ import annotations

import os
import time
from pathlib import Path

from shardlab import csvlog
from shardlab.errors import RunFailed
from shardlab.measure import procfs
from shardlab.measure.procfs import PROC
from shardlab.measure.reading import TreeReading
from shardlab.measure.tree import Proc
from shardlab.records import Memory, MemoryRecord

FLUSH_S = 1.0
SHARE = 500
"""PSS is read at most once in this many times the last read's duration: a fifth of a percent of a core."""

BUILDING, FEEDING = "building", "feeding"
"""The ranks make what they read from, until all of them have begun an epoch."""

LEAST_CHANGE_BYTES = 1 << 20
"""A process whose RSS moved by less gets one row a second."""


class Timeline:
    """Rows of ``memory.csv`` and the peaks; ``procs`` is the tree as last seen, ``phase`` what the ranks do.

    ``pss_always`` reads PSS of all in every sample, and keeps the peak of each phase. What processes held for a
    moment between two samples while they built is in it, as if all had held it at once; later the kernel's peak of a
    process counts pages that it shares with others. ``least_s`` is the least time between two readings of PSS,
    ``share`` how many times what it took of the processor passes before the next one.
    """

    def __init__(
        self,
        run_id: str,
        node: str,
        results: str | None,
        root: Path = PROC,
        *,
        pss_always: bool = False,
        least_s: float = 1.0,
        share: float = SHARE,
    ) -> None:
        self.procs: list[Proc] = []
        self.samples = 0
        # readings of PSS by pid and start, soon after a process was seen and lately
        self.first: dict[tuple[int, int], Memory] = {}
        self.last: dict[tuple[int, int], Memory] = {}
        self.pss_peak_bytes: int | None = None
        self.rss_peak_bytes: int | None = None
        self.reason = ""
        self.phase = BUILDING
        self.phase_peaks: dict[str, int] = {}
        self._pss_always = pss_always
        self._least_s, self._share = least_s, share
        self._run_id = run_id
        self._node = node
        self._results = results
        self._root = root
        self._started = time.monotonic()
        self._page_size = os.sysconf("SC_PAGESIZE")
        self._rows: list[MemoryRecord] = []
        self._written: dict[Proc, tuple[float, int]] = {}  # when a row was made, and its RSS
        self._pss: dict[Proc, int] = {}
        self._found: dict[Proc, int] = {}  # resident bytes of the last sample
        self._rss_peaks: dict[tuple[int, int], int] = {}  # as the kernel keeps them, by pid and start
        self._phase_read = BUILDING  # in the sample before
        self._next_pss = self._next_flush = 0.0

    @property
    def t_s(self) -> float:
        """Seconds since the monitor started."""
        return time.monotonic() - self._started

    def tick(self) -> None:
        """One sample of every process; PSS of one of them and the file when their time has come."""
        now = self.t_s
        if self._pss_always:
            self._read_all(now)
        found = {proc: rss for proc in self.procs if (rss := self._rss(proc)) is not None}
        self._found = found
        for proc, rss in found.items():
            when, before = self._written.get(proc, (-FLUSH_S, 0))
            if now - when >= FLUSH_S or abs(rss - before) >= LEAST_CHANGE_BYTES:
                self._add(proc, now, Memory(rss_bytes=rss))
        self.samples += 1
        if found:
            self.rss_peak_bytes = _larger(self.rss_peak_bytes, sum(found.values()))
        if found and now >= self._next_pss and not self._pss_always:
            self._rotate(list(found))
        if now >= self._next_flush:
            self.flush()

    def rss_of(self, proc: Proc) -> int | None:
        """Resident bytes in the last sample; ``None`` where it was not there."""
        return self._found.get(proc)

    def forget(self, key: tuple[int, int]) -> None:
        """A process, by pid and start, is gone for good."""
        self.first.pop(key, None)
        self.last.pop(key, None)
        self._written = {p: w for p, w in self._written.items() if (p.pid, p.start_ticks) != key}

    def record(self, reading: TreeReading) -> None:
        """Rows and peaks of a reading of the whole tree."""
        now = self.t_s
        for proc, memory in reading.memory.items():
            self._add(proc, now, memory)
        self._note_pss({proc: memory.pss_bytes for proc, memory in reading.memory.items()})

    def flush(self) -> None:
        """Append the rows to the file. Where that fails the reason is kept, and no more rows."""
        rows, self._rows = self._rows, []
        self._next_flush = self.t_s + FLUSH_S
        try:
            if self._results is not None:
                csvlog.append(Path(self._results), "memory.csv", rows)
        except RunFailed as error:
            self._results, self.reason = None, str(error)

    def _read_all(self, now: float) -> None:
        """PSS of every process, and the peak of what goes on."""
        read: dict[Proc, Memory] = {}
        before, spikes = self._phase_read, 0
        for proc in self.procs:
            peak = procfs.read_rss_peak(proc.pid, self._root)  # first: what comes after it is in the reading
            memory = procfs.read_memory(proc.pid, self._root)
            if memory is not None:
                read[proc] = memory
                spike = self._spike(proc, peak, memory.rss_bytes) if before == BUILDING else None
                self._add(proc, now, memory, spike)
                spikes += spike or 0
        self._note_pss({proc: memory.pss_bytes for proc, memory in read.items()}, spikes)
        self.phase_peaks[before] = _larger(self.phase_peaks.get(before), sum(self._pss.values()) + spikes)
        self.phase_peaks[self.phase] = _larger(self.phase_peaks.get(self.phase), sum(self._pss.values()))
        self._phase_read = self.phase

    def _spike(self, proc: Proc, peak: int | None, rss: int | None) -> int | None:
        """How far a process was above ``rss`` since the sample before; what was before the first one is not told."""
        if peak is None or rss is None:
            return None
        key = proc.pid, proc.start_ticks
        before = self._rss_peaks.get(key, 0 if self.samples else peak)
        self._rss_peaks[key] = peak
        return max(0, peak - rss) if peak > before else 0

    def _rotate(self, procs: list[Proc]) -> None:
        """Read the PSS of the process whose turn it is: a new one, or the one read longest ago."""
        known = [proc for proc in self._pss if proc in procs]
        proc = next((proc for proc in procs if proc not in self._pss), known[0] if known else procs[0])
        began = time.process_time()
        memory = procfs.read_memory(proc.pid, self._root)
        self._next_pss = self.t_s + max(self._least_s, self._share * (time.process_time() - began))
        self._pss.pop(proc, None)  # goes to the end of the queue
        if memory is not None:
            self._add(proc, self.t_s, memory)
        pss = {other: self._pss[other] for other in known if other != proc}
        self._note_pss({**pss, proc: None if memory is None else memory.pss_bytes})

    def _note_pss(self, pss: dict[Proc, int | None], spikes: int = 0) -> None:
        self._pss = {proc: value for proc, value in pss.items() if value is not None}
        if self._pss:
            self.pss_peak_bytes = _larger(self.pss_peak_bytes, sum(self._pss.values()) + spikes)

    def _add(self, proc: Proc, t_s: float, memory: Memory, spike: int | None = None) -> None:
        if memory.pss_bytes is not None:
            self.first.setdefault((proc.pid, proc.start_ticks), memory)
            self.last[proc.pid, proc.start_ticks] = memory
        if memory.rss_bytes is not None:
            self._written[proc] = t_s, memory.rss_bytes
        if self._results is not None:
            place = (proc.pid, proc.role, proc.rank, proc.worker)
            row = MemoryRecord(self._run_id, round(t_s, 3), self._node, *place, **vars(memory), spike_bytes=spike)
            self._rows.append(row)

    def _rss(self, proc: Proc) -> int | None:
        try:
            return procfs.statm_rss(procfs.read(proc.pid, "statm", self._root), self._page_size) or None
        except (OSError, IndexError):
            return None


def _larger(a: int | None, b: int) -> int:
    return b if a is None else max(a, b)

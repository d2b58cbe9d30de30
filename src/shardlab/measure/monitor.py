"""A process of its own that reads the memory of a run: over time, and with all ranks held.

``python -m shardlab.measure.monitor RUN_DIR`` reads ``RUN_DIR/monitor.json`` and leaves there
``monitor.ready`` when it listens, ``hold-EPOCH.json`` after each hold and ``monitor-end.json`` at its end.
It ends on SIGTERM, when ``monitor.stop`` appears, or with the process that it belongs to.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from shardlab.measure import settle, tree
from shardlab.measure.barrier import Barrier
from shardlab.measure.census.result import Subject
from shardlab.measure.databytes import read_data
from shardlab.measure.progress import ProgressFile
from shardlab.measure.reading import HoldReading, read_tree, summarise
from shardlab.measure.supervise import (
    CONFIG_NAME,
    END_NAME,
    READY_NAME,
    STOP_NAME,
    MonitorConfig,
    MonitorEnd,
    hold_name,
    read_hold,
    start,
    stop,
    write,
)
from shardlab.measure.timeline import BUILDING, FEEDING, SHARE, Timeline
from shardlab.process import remove_run_folder

__all__ = ["Monitor", "MonitorConfig", "MonitorEnd", "main", "read_hold", "start", "stop"]

TICK_S = 0.1
REFRESH_S = 0.5
IDLE_LIMIT_S = 3.0
TRIM_LIMIT_S = 5.0
SETTLE_LIMIT_S = 2.0
LEAVE_LIMIT_S = 3.0


class _Ended(Exception):
    """The monitor was told to stop, or its process died, during a hold."""


class Monitor:
    """The loop: hear the ranks, look at the tree, sample, and read all of it when every rank is held."""

    def __init__(self, run_dir: Path, config: MonitorConfig, barrier: Barrier) -> None:
        self.run_dir = run_dir
        self.config = config
        self.barrier = barrier
        self.timeline = Timeline(
            config.run_id, config.node, config.results, pss_always=config.pss_timeline
        )
        self.hold_cpu_s = 0.0
        self._told_to_stop = False
        self._parent = tree.start_ticks_of(config.parent_pid)
        self._next_refresh = 0.0
        self._next_tick = 0.0

    def run(self) -> None:
        """Until told to stop, or until the process it belongs to is gone."""
        with suppress(_Ended):
            while True:
                self._pause(max(self._next_tick - time.monotonic(), 0.0))
                epoch = self.barrier.due()
                if epoch is not None:
                    before = time.process_time()
                    self._hold(epoch)
                    self.hold_cpu_s += time.process_time() - before
                if time.monotonic() >= self._next_refresh:
                    self._refresh()
                if self.config.pss_timeline:
                    self.timeline.phase = self._phase()
                self.timeline.tick()
                self._next_tick = time.monotonic() + TICK_S
        self.timeline.flush()
        self.barrier.close()

    def tell_to_stop(self) -> None:
        """End soon; safe to call from a signal handler."""
        self._told_to_stop = True

    def parent_is_gone(self) -> bool:
        """True when the process that this monitor belongs to has ended."""
        # Looked up, not signalled: PR_SET_PDEATHSIG comes when the thread that started us ends.
        return self._parent is None or not tree.is_alive(self.config.parent_pid, self._parent)

    def wait_until_nobody_lives(self) -> None:
        """Return when the processes of the run that were seen have ended, or have had the time for it."""
        deadline = time.monotonic() + LEAVE_LIMIT_S
        while any(tree.is_alive(proc.pid, proc.start_ticks) for proc in self.timeline.procs):
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)

    def _pause(self, seconds: float) -> None:
        """Hear the ranks for so long; raises _Ended when this monitor is to end."""
        deadline = time.monotonic() + seconds
        while True:
            self.barrier.pump(deadline - time.monotonic())
            if self._told_to_stop or (self.run_dir / STOP_NAME).exists() or self.parent_is_gone():
                raise _Ended
            if time.monotonic() >= deadline:
                return

    def _phase(self) -> str:
        """What the ranks do: build what they read from, until all of them have begun an epoch."""
        if self.timeline.phase == FEEDING:
            return FEEDING
        progress = ProgressFile.of(self.run_dir)
        return FEEDING if progress is not None and all(rank.epoch for rank in progress.read()) else BUILDING

    def _refresh(self) -> None:
        """Look at the process tree again; on a machine with many processes less often."""
        began = time.monotonic()
        config, ranks = self.config, self.barrier.pids
        roots = [config.launcher_pid] if config.launcher_pid is not None else list(ranks.values())
        found = tree.descendants(roots, skip=[os.getpid()])
        self.timeline.procs = tree.classify(found, config.launcher_pid, ranks, tree.read_cmdline)
        living = {proc.pid for proc in self.timeline.procs}
        self.barrier.lose(rank for rank, pid in ranks.items() if pid not in living)
        now = time.monotonic()
        share = 0 if self.config.pss_timeline else SHARE  # a peak is wanted, whatever it costs
        self._next_refresh = now + max(REFRESH_S, share * (now - began))

    def _hold(self, epoch: int) -> None:
        """Read the memory of all while they wait, and let them go on."""
        began = time.monotonic()
        reasons: dict[str, str] = {}
        self._refresh()
        procs = self.timeline.procs
        if not settle.wait_idle(procs, self._pause, IDLE_LIMIT_S):
            reasons["idle"] = f"workers still worked after {IDLE_LIMIT_S:g} s"
        before = settle.anonymous_bytes(procs)
        self._trim(epoch, reasons)
        after, agreed = settle.settled(procs, self._pause, SETTLE_LIMIT_S)
        read = read_tree(procs)  # PSS once alone: it is the dear part of a hold
        if not agreed:
            reasons["settled"] = f"memory still changed after {SETTLE_LIMIT_S:g} s"
        if ended := sorted(self.barrier.ended(epoch)):
            reasons["ended"] = f"rank {', '.join(map(str, ended))} ended the epoch before memory was read"
        store_file = Path(self.config.store_file or self.run_dir / "store.json")
        reading = summarise(
            read, max(before - after, 0), read_data(store_file, self.config.dataset_files, procs),
            epoch=epoch, t_s=self.timeline.t_s, hold_s=time.monotonic() - began,
            absent_ranks=self.barrier.absent(epoch), reasons=reasons,
        )
        if self.config.census:
            reading = self._with_census(reading)
        write(self.run_dir / hold_name(epoch), reading)
        self.timeline.record(read)
        answers = {rank: asdict(memory) for rank, memory in reading.by_rank.items()}
        self.barrier.release(epoch, answers, reading.complete, reading.reasons.get("absent_ranks", ""))

    def _with_census(self, reading: HoldReading) -> HoldReading:
        """The reading, and what the content of the memory says; the ranks are held still."""
        from shardlab.measure.census.pages import whole_pages
        from shardlab.measure.census.take import take  # numpy, for those who ask for it

        found = tree.descendants([proc.pid for proc in self.timeline.procs], skip=[os.getpid()])
        families = tree.families(found, tree.read_cmdline)
        no_data = {self.barrier.pids[rank]: spans for rank, spans in self.barrier.no_data.items()}
        census = take([
            Subject(
                proc.pid, families.get(proc.pid, proc.pid), proc.rank, proc.role == "worker",
                whole_pages(no_data.get(proc.pid, ())),
            )
            for proc in self.timeline.procs
        ])  # fmt: skip
        reasons = dict(reading.reasons)
        if census.unreadable:
            reasons["census"] = "; ".join(sorted(set(census.unreadable.values())))
        duplicate = None if census.unreadable else census.duplicate_bytes
        return replace(
            reading, census_duplicate_bytes=duplicate, census_cpu_s=census.cpu_s, reasons=reasons
        )

    def _trim(self, epoch: int, reasons: dict[str, str]) -> None:
        """Have the held ranks and their workers give free memory back, and wait until they have."""
        deadline = time.monotonic() + TRIM_LIMIT_S
        self.barrier.ask_to_trim(epoch)
        while not self.barrier.all_trimmed(epoch):
            if time.monotonic() > deadline:
                reasons["trim"] = f"a rank did not trim within {TRIM_LIMIT_S:g} s"
                break
            self._pause(0.001)
        if settle.trim_workers(self.timeline.procs):
            settle.wait_idle(self.timeline.procs, self._pause, SETTLE_LIMIT_S)


def main(argv: list[str]) -> int:
    """Run the monitor of ``argv[0]``, the run's folder, to its end."""
    run_dir = Path(argv[0])
    config = msgspec.json.decode((run_dir / CONFIG_NAME).read_bytes(), type=MonitorConfig)
    monitor = Monitor(run_dir, config, Barrier(run_dir, config.local_ranks, config.hold_timeout_s))
    signal.signal(signal.SIGTERM, lambda *_: monitor.tell_to_stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (run_dir / READY_NAME).touch()
    startup_cpu_s = time.process_time()
    monitor.run()
    timeline = monitor.timeline
    end = MonitorEnd(
        pss_peak_bytes=timeline.pss_peak_bytes,
        rss_peak_bytes=timeline.rss_peak_bytes,
        monitor_cpu_s=time.process_time() - startup_cpu_s,
        startup_cpu_s=startup_cpu_s,
        hold_cpu_s=monitor.hold_cpu_s,
        samples=timeline.samples,
        reason=timeline.reason,
        feeding_peak_bytes=timeline.phase_peaks.get(FEEDING),
    )
    if config.clean_run_dir and monitor.parent_is_gone():
        monitor.wait_until_nobody_lives()
        remove_run_folder(run_dir)  # nobody else is left to do it
    else:
        write(run_dir / END_NAME, end)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

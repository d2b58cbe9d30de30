"""The readers of a ring as the rank that leads sees them: started, watched, ended."""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from shardlab.ring.members import dead_while_reading
from shardlab.ring.memory import Ring, Word
from shardlab.shm import Handle, withdraw

WATCH_S = 1.0  # how often ranks are looked at; the end of a reader is seen at once
GRACE_S = 3.0  # for what a reader is filling while another rank may wait for it
DEATH_S = 1.0  # from being asked to end to being killed


class Crew:
    """Reader processes that run. A thread fails the ring where one of them dies, whatever the rank is doing."""

    def __init__(self, ring: Ring, handle: Handle, processes: list[BaseProcess]) -> None:
        self.ring, self.processes = ring, processes
        self._handle = handle
        self.is_reading = False
        self._ending = False
        self._watcher = threading.Thread(target=self._watch, name="ring-watcher", daemon=True)
        self._watcher.start()

    def begin(self) -> None:
        """Let the readers go on with what the control words say."""
        self.ring.control[Word.STOP] = 0
        self.is_reading = True
        for reader in range(self.ring.shape.readers):
            self.ring.semaphores.post(self.ring.start(reader))

    def stop(self, patience_s: float | None = None) -> bool:
        """Wait until no reader writes; False where the ring has failed or one is not through in time."""
        # The base stays: a rank that was let go may read it only now, when the leader closes already.
        deadline = None if patience_s is None else time.monotonic() + patience_s
        self.ring.control[Word.STOP] = 1
        for reader in range(self.ring.shape.readers if self.is_reading else 0):
            while not self.ring.semaphores.wait(self.ring.idle(reader), 0.5):
                if self.ring.control[Word.ERROR] or (deadline is not None and time.monotonic() > deadline):
                    return False
        self.is_reading = False
        return not self.ring.control[Word.ERROR]

    def end(self, patience_s: float | None) -> None:
        """End the readers, those too that are in the middle of something when patience ends."""
        self.stop(patience_s)
        self._ending = True
        for process in self.processes:
            process.terminate()
        deadline = time.monotonic() + DEATH_S
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self.ring.control[Word.CLOSED] = 1
        withdraw(self._handle)
        self._watcher.join(2 * WATCH_S)

    def _watch(self) -> None:
        while not self._ending and not self.ring.control[Word.ERROR]:
            ended = wait([process.sentinel for process in self.processes], WATCH_S)
            if ended and not self._ending:
                process = next(process for process in self.processes if process.sentinel in ended)
                process.join(GRACE_S)
                self.ring.fail(f"{process.name} of the ring died (exit code {process.exitcode})")
            elif cause := dead_while_reading(self.ring):
                self.ring.fail(cause)

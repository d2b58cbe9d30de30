"""The ranks' side of the barrier at which memory is read. Light, as ranks and DataLoader workers import it.

Lines of JSON go over a unix socket in the run's own folder::

    rank                                    monitor
    {"event": "hello", "rank", "pid"}  -->
    {"event": "held", "epoch", ...}    -->  waits for the other ranks, reads
                                       <--  {"do": "trim"}
    malloc_trim, {"event": "trimmed"}  -->  trims the workers, reads again
                                       <--  {"do": "go", "memory": {...}}
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardlab.records import Memory

SOCKET_NAME = "monitor.sock"
TRIM_SIGNAL: int | None = signal.SIGRTMIN + 7 if sys.platform == "linux" else None
"""What asks a worker process to give free memory back; sent only where it is caught."""

_LINE_LIMIT_BYTES = 1 << 16
_MOST_SPANS = 1000  # of 40 bytes in a line at the most


@dataclass(frozen=True)
class HoldReply:
    """What the monitor read while all were held; ``memory`` is of this rank's process and its workers."""

    epoch: int
    memory: Memory | None
    complete: bool
    reason: str = ""


def trim() -> bool:
    """Give the allocator's free pages back to the kernel; False where it is not glibc's and cannot."""
    malloc_trim = _malloc_trim()
    if malloc_trim is None:
        return False
    malloc_trim(0)
    return True


def trim_on_signal() -> None:
    """From now on TRIM_SIGNAL trims this process. Called in a worker's main thread, by ``worker_init_fn``."""
    if TRIM_SIGNAL is not None:
        _malloc_trim()  # found now, so that the handler allocates next to nothing
        signal.signal(TRIM_SIGNAL, lambda *_: trim())


class Holder:
    """One rank's end of the barrier. Nothing here raises.

    Without a monitor, or once it is gone, a hold returns at once and ``reason`` says why.
    """

    def __init__(
        self, rank: int, connection: socket.socket | None, timeout_s: float, reason: str = ""
    ) -> None:
        self.rank = rank
        self.reason = reason
        self._timeout_s = timeout_s
        self._socket = connection
        self._received = b""

    @classmethod
    def connect(cls, run_dir: Path, rank: int, timeout_s: float = 120.0) -> Holder:
        """Greet the monitor of ``run_dir``. ``timeout_s`` is the longest that one hold may take."""
        from shardlab import records  # noqa: F401  loaded before the first reading, not between two of them

        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            with short_path(run_dir) as folder:
                connection.connect(f"{folder}/{SOCKET_NAME}")
        except OSError as error:
            connection.close()
            return cls(rank, None, timeout_s, f"no monitor in {run_dir}: {error.strerror or error}")
        holder = cls(rank, connection, timeout_s)
        holder._send("hello")
        return holder

    def hold(self, epoch: int, no_data: Sequence[tuple[int, int]] = ()) -> HoldReply | None:
        """Wait until the monitor has read the memory of all ranks; ``None`` where it could not.

        ``no_data``: addresses [start, stop) whose content is not to be compared, of which the largest are told.
        """
        deadline = time.monotonic() + self._timeout_s
        largest = sorted(no_data, key=lambda span: span[0] - span[1])[:_MOST_SPANS]
        self._send("held", epoch, sorted(largest))
        while (message := self._receive(deadline)) is not None:
            if message.get("do") == "trim":
                trim()
                self._send("trimmed", epoch)
            elif message.get("do") == "go" and message.get("epoch") == epoch:
                return _reply(message)
        return None

    def ended(self, epoch: int) -> None:
        """This rank ends the epoch without a hold, so that the others need not wait for it."""
        self._send("ended", epoch)

    def close(self) -> None:
        """Leave; the monitor does not wait for this rank any more."""
        self._leave("closed")

    def _send(self, event: str, epoch: int | None = None, no_data: Sequence[tuple[int, int]] = ()) -> None:
        message = {"event": event, "rank": self.rank, "pid": os.getpid(), "epoch": epoch, "no_data": no_data}
        try:
            if self._socket is not None:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._leave(f"the monitor went away: {error.strerror or error}")

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """The next message; ``None`` after leaving, with the reason set."""
        try:
            while self._socket is not None and b"\n" not in self._received:
                self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
                data = self._socket.recv(4096)
                self._received += data
                if not data or len(self._received) > _LINE_LIMIT_BYTES:
                    self._leave("the monitor ended while this rank was held")
            if self._socket is None:
                return None
            line, _, self._received = self._received.partition(b"\n")
            message = json.loads(line)
            return message if isinstance(message, dict) else {}
        except TimeoutError:
            self._leave(f"the monitor did not answer within {self._timeout_s:g} s")
        except (OSError, ValueError) as error:
            self._leave(f"the monitor went away: {error}")
        return None

    def _leave(self, reason: str) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket, self.reason = None, reason


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """A name of the folder that fits the 108 bytes of a unix socket's address, however deep it lies."""
    if not Path("/proc/self/fd").is_dir():
        yield str(folder)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _reply(message: dict[str, Any]) -> HoldReply:
    from shardlab.records import Memory  # here, as workers import this module and need no records

    memory = message.get("memory")
    return HoldReply(
        epoch=message["epoch"],
        memory=None if memory is None else Memory(**memory),
        complete=bool(message.get("complete")),
        reason=str(message.get("reason", "")),
    )


@cache
def _malloc_trim() -> Any:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):
        return None

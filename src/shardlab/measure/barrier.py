"""The monitor's side of the barrier: which ranks are held, which are done, which will not come."""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardlab.measure.hold import SOCKET_NAME, short_path

_LINE_LIMIT_BYTES = 1 << 16


@dataclass
class _Meeting:
    """The ranks of one epoch; ``since`` is when the first was held."""

    since: float = 0.0
    held: set[int] = field(default_factory=set)
    trimmed: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)


class Barrier:
    """Listens in ``run_dir`` for the ranks ``expected``; has no thread, so :meth:`pump` hears them."""

    def __init__(self, run_dir: Path, expected: Iterable[int], timeout_s: float) -> None:
        self.pids: dict[int, int] = {}
        self.no_data: dict[int, list[tuple[int, int]]] = {}  # by rank: addresses whose content is not to be compared
        self._expected = frozenset(expected)
        self._timeout_s = timeout_s
        self._meetings: dict[int, _Meeting] = {}
        self._done: set[int] = set()
        self._lost: set[int] = set()
        self._peers: dict[int, socket.socket] = {}
        self._received: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(run_dir)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def pump(self, timeout_s: float) -> None:
        """Hear what the ranks say, waiting at most ``timeout_s`` for the first of them."""
        for key, _ in self._selector.select(max(timeout_s, 0.0)):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._received[connection] = b""
                self._selector.register(connection, selectors.EVENT_READ)
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._hear(key.fileobj)

    def due(self) -> int | None:
        """The epoch whose ranks are all held, done or lost, or whose deadline has passed."""
        for epoch, meeting in sorted(self._meetings.items()):
            late = time.monotonic() - meeting.since > self._timeout_s
            if meeting.held and (late or not self.absent(epoch) - self._lost):
                return epoch
        return None

    def absent(self, epoch: int) -> set[int]:
        """The expected ranks neither held nor done with the epoch; one that died while held is absent."""
        meeting = self._meetings[epoch]
        return set(self._expected - (meeting.held - self._lost) - meeting.ended)

    def ended(self, epoch: int) -> set[int]:
        """The ranks that ended the epoch without a hold."""
        return set(self._meetings[epoch].ended)

    def lose(self, ranks: Iterable[int]) -> None:
        """These ranks are gone; nobody waits for them."""
        self._lost.update(ranks)

    def ask_to_trim(self, epoch: int) -> None:
        """Tell the held ranks to give free memory back."""
        for rank in list(self._meetings[epoch].held):
            self._tell(rank, {"do": "trim"})

    def all_trimmed(self, epoch: int) -> bool:
        """True when each held rank has answered or is lost."""
        meeting = self._meetings[epoch]
        return meeting.held - self._lost <= meeting.trimmed

    def release(self, epoch: int, answers: dict[int, dict[str, Any]], complete: bool, reason: str) -> None:
        """Let the held ranks go on, each with its memory; a rank that comes later goes on at once."""
        for rank in list(self._meetings.pop(epoch).held):
            self._tell(rank, _go(epoch, answers.get(rank), complete, reason))
        self._done.add(epoch)

    def close(self) -> None:
        """End all connections; ranks that are held go on without a reading."""
        for connection in [*self._received, self._listener]:
            connection.close()
        self._selector.close()

    def _hear(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._received[connection] + data).split(b"\n")
        self._received[connection] = rest
        try:
            for line in lines:
                self._note(connection, json.loads(line))
        except (ValueError, KeyError, TypeError):
            data = b""  # not one of our ranks
        if not data or len(rest) > _LINE_LIMIT_BYTES:
            self._drop(connection)

    def _note(self, connection: socket.socket, message: dict[str, Any]) -> None:
        rank, event, epoch = int(message["rank"]), message["event"], message.get("epoch")
        if rank not in self._expected:
            raise ValueError(f"rank {rank} is not of this node")
        self._peers[rank] = connection
        self.pids[rank] = int(message["pid"])
        self._lost.discard(rank)
        if not isinstance(epoch, int):
            return
        if epoch in self._done:
            if event == "held":
                self._tell(rank, _go(epoch, None, False, "this rank came after the reading"))
            return
        meeting = self._meetings.setdefault(epoch, _Meeting())
        if event == "held":
            self.no_data[rank] = [(int(start), int(stop)) for start, stop in message.get("no_data", ())]
        if event == "held" and not meeting.held:
            meeting.since = time.monotonic()
        {"held": meeting.held, "trimmed": meeting.trimmed, "ended": meeting.ended}[event].add(rank)

    def _tell(self, rank: int, message: dict[str, Any]) -> None:
        connection = self._peers.get(rank)
        if connection is None:
            return
        try:
            connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        if self._received.pop(connection, None) is None:
            return
        self._lost.update(rank for rank, peer in self._peers.items() if peer is connection)
        self._peers = {rank: peer for rank, peer in self._peers.items() if peer is not connection}
        self._selector.unregister(connection)
        connection.close()


def _go(epoch: int, memory: dict[str, Any] | None, complete: bool, reason: str) -> dict[str, Any]:
    return {"do": "go", "epoch": epoch, "memory": memory, "complete": complete, "reason": reason}


def _listen(run_dir: Path) -> socket.socket:
    """A listening socket for this user alone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError):
        os.unlink(run_dir / SOCKET_NAME)
    before = os.umask(0o177)
    try:
        with short_path(run_dir) as folder:
            listener.bind(f"{folder}/{SOCKET_NAME}")
    finally:
        os.umask(before)
    listener.listen(1024)
    listener.setblocking(False)
    return listener

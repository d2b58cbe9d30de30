"""No process of a run outlives its launcher, and a failing rank says why before it goes.

The launcher holds the write end of a named pipe; every rank and worker blocks a thread on reading it. When
the launcher ends, however it ends, the kernel closes its end and all of them leave. A parent-death signal
does the same sooner where the parent is the launcher, and is the only means under another launcher.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from shardlab.errors import ExitCode, ShardlabError
from shardlab.process import heeded_signals, remove_run_folder

# What gloo, the ring, the store and shared memory say on a rank that lost another one.
ECHOES = (
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "died in the middle of an epoch",
    "left the ring, and the others wait for it",
    "local rank 0 could not build the shared copy",
    "the shared copy held by process",
    "training cannot begin",
)
INTERRUPTED = int(ExitCode.INTERRUPTED)


def create(path: Path) -> int:
    """Make the pipe and open both ends of it in the launcher: its descriptor. Closing it ends the run."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def follow(path: Path) -> None:
    """End this process at once when the pipe at ``path`` has no writer left."""
    _let_go_of(path)
    try:
        # Without O_NONBLOCK this would wait for ever for a launcher that was killed before.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # the launcher is gone already
        os._exit(1)
    os.set_blocking(fd, True)

    def wait() -> None:
        while os.read(fd, 1):  # nothing is ever written: only the end of it is read
            pass
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def _let_go_of(path: Path) -> None:
    """Close the write end that a forked rank has from its launcher: ranks must not keep each other alive."""
    for fd in (int(name) for name in os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), path.stat()):
                os.close(fd)


def leave_quietly_on_signals(folder: Path | None = None) -> None:
    """A rank told to stop leaves without a traceback; the launcher does the talking.

    ``folder`` is what this rank has to remove then; not a reader or worker forked from it, told to stop alone.
    """
    rank = os.getpid()

    def leave(number: int, _frame: FrameType | None) -> None:
        if folder is not None and os.getpid() == rank:
            remove_run_folder(folder)
        os._exit(INTERRUPTED if number == signal.SIGINT else 128 + number)

    for number in heeded_signals():
        signal.signal(number, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@dataclass(frozen=True)
class Failure:
    """Why a rank ended, in its own words. ``expected`` errors need no traceback."""

    rank: int
    time_ns: int
    kind: str
    message: str
    where: str
    trace: str
    expected: bool
    exit_code: int

    @property
    def is_echo(self) -> bool:
        """True for what a rank says when it lost another rank: the cause lies there."""
        text = self.message.lower()
        return any(sign in text for sign in ECHOES)


def forget_workers() -> None:
    """Hear no more of workers that end: torch's handler raises for each, while a failure is written too."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def write_failure(run_dir: Path, rank: int, error: BaseException) -> Failure:
    """Leave ``failure-<rank>.json`` in the run's folder."""
    kind, message = _own_words(error)
    failure = Failure(
        rank=rank,
        time_ns=time.time_ns(),
        kind=kind,
        message=message,
        where=_users_frame(error),
        trace="".join(traceback.format_exception(error)),
        expected=isinstance(error, ShardlabError) or _LOST_WORKER.match(message) is not None,
        exit_code=int(error.exit_code) if isinstance(error, ShardlabError) else int(ExitCode.FAILED),
    )
    with contextlib.suppress(OSError):
        (run_dir / f"failure-{rank}.json").write_bytes(msgspec.json.encode(failure))
    return failure


def failed(run_dir: Path) -> list[Path]:
    """The files of the ranks that failed so far."""
    return list(run_dir.glob("failure-*.json"))


def read_failures(run_dir: Path) -> list[Failure]:
    """All failures that ranks left, the first one first."""
    found = [msgspec.json.decode(file.read_bytes(), type=Failure) for file in failed(run_dir)]
    return sorted(found, key=lambda failure: failure.time_ns)


_WORKERS_ERROR = re.compile(r"Caught (?P<kind>[\w.]+) (?P<worker>in .*?)\.\n.*Traceback", re.DOTALL)
_LOST_WORKER = re.compile(r"DataLoader worker \(pid.* (exited unexpectedly|is killed by signal)")
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def _own_words(error: BaseException) -> tuple[str, str]:
    """Type and message; of an error that a DataLoader worker sent, those in the traceback that it carries."""
    kind, text = type(error).__name__, str(error).strip()
    sent = _WORKERS_ERROR.match(text)
    if sent is None:
        return kind, text
    # After the last frame, its source line and its marks comes "package.Type: the message".
    said = re.search(r"^(?! )[\w.]+(?:: (.*))?\Z", text[_last_frame_end(text) :], re.DOTALL | re.MULTILINE)
    message = (said[1] or "") if said else text.splitlines()[-1]
    return sent["kind"], f"{message} ({sent['worker']})".strip()


def _last_frame_end(text: str) -> int:
    return max((frame.end() for frame in _FRAME.finditer(text)), default=0)


def _users_frame(error: BaseException) -> str:
    """``file:line in function`` of the innermost frame that is neither ours nor a library's."""
    ours = str(Path(__file__).parent.parent)
    text = str(error)
    if _WORKERS_ERROR.match(text):
        frames = [(frame[1], frame[2], frame[3]) for frame in _FRAME.finditer(text)]
    else:
        frames = [(f.filename, str(f.lineno), f.name) for f in traceback.extract_tb(error.__traceback__)]
    for file, line, name in reversed(frames):
        if "site-packages" not in file and not file.startswith((ours, sys.base_prefix, "<")):
            return f"{file}:{line} in {name}"
    return ""

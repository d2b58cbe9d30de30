"""What a process asks of the kernel for itself."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, TracebackType

SHM = Path("/dev/shm")
_PR_SET_PDEATHSIG = 1
_RUN = "shardlab_run"  # in multiprocessing's settings, which a process takes over from the one that starts it
_WORKER = "worker-"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os._exit(1)


def die_with_starter() -> None:
    """End this process, without a word, when the one that multiprocessing started it for does.

    Under a fork server that is not the parent, and server and worker would keep each other alive for ever.
    """
    die_with_parent()
    ignore_lost_connections()
    _sign_in()
    starter = multiprocessing.parent_process()
    if starter is None:
        return

    def wait() -> None:
        starter.join()
        os._exit(1)

    threading.Thread(target=wait, name="starter", daemon=True).start()


@contextmanager
def without_main() -> Iterator[None]:
    """Processes that are spawned meanwhile do not import the file that this one was started with.

    A rank has no use for it, and would hold what a command or a script imports, which the ranks of the control,
    started by another command, do not.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def ignore_lost_connections() -> None:
    """Keep multiprocessing's threads silent where a process at the other end is gone in the middle of a batch."""
    tell = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        helper = threading.current_thread() is not threading.main_thread()
        if not (helper and issubclass(kind, (EOFError, ConnectionError))):
            tell(kind, error, trace)

    sys.excepthook = hook


def keep_sockets_in(folder: str) -> None:
    """Have multiprocessing put its sockets in a run's folder, for this process and those that it starts.

    Its own choice is a new folder that stays behind where the process is ended. The address of a socket has
    108 bytes, so a folder inside ``folder`` would not always fit.
    """
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    settings["tempdir"] = settings[_RUN] = folder


def _sign_in() -> None:
    """Leave this worker's number in the run's folder, where there is one."""
    folder = multiprocessing.current_process()._config.get(_RUN)  # type: ignore[attr-defined]
    if folder is not None:
        with suppress(OSError):
            Path(folder, f"{_WORKER}{os.getpid()}").write_text(identity(os.getpid()) or "")


def remove_run_folder(folder: Path) -> None:
    """Remove a run's folder, and what its workers left in shared memory.

    torch gives a batch that is handed over a file with a name there, and takes the name away at once: a worker
    that is killed in between leaves both.
    """
    for worker in folder.glob(_WORKER + "*"):
        pid = worker.name.removeprefix(_WORKER)
        with suppress(OSError):
            if identity(int(pid)) in (None, worker.read_text()):  # else the number is another process by now
                _remove_own(SHM.glob(f"torch_{pid}_*"))
    shutil.rmtree(folder, ignore_errors=True)


def _remove_own(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            if file.stat().st_uid == os.getuid():
                file.unlink()


def has_ended(owner: str) -> bool:
    """Whether the process with that :func:`identity` is no more."""
    pid = owner.partition(" ")[0]
    return pid.isdigit() and identity(int(pid)) != owner


def identity(pid: int) -> str | None:
    """``pid start-time``: a process number alone comes back for another process. None for one that ended.

    One that was killed with its parent may wait to be reaped for as long as whoever adopted it likes.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return str(pid) if _lives(pid) else None
    return None if state in "ZX" else f"{pid} {fields[18]}"


def _lives(pid: int) -> bool:
    """Asked where there is no /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not Path("/proc/self/stat").exists()


def call_no_semaphores_leaked() -> None:
    """Keep multiprocessing's tracker, in processes started from now on, from warning of what it clears up.

    It removes the names of semaphores that ranks and workers had when they were ended, and calls them leaked.
    """
    rules = [os.environ.get("PYTHONWARNINGS", ""), "ignore:resource_tracker:UserWarning"]
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, rules))


def heeded_signals() -> list[signal.Signals]:
    """Those that ask for the end, less what this process was started to ignore, as ``nohup`` does."""
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in asking if signal.getsignal(number) is not signal.SIG_IGN]


def die_with(pid: int) -> None:
    """End this process when another one does, be it parent or not (Linux 5.3; elsewhere nothing)."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)
    except (OSError, AttributeError):
        return

    def wait() -> None:
        select.select([handle], [], [])
        os._exit(1)

    threading.Thread(target=wait, name="die-with", daemon=True).start()


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """What a dataset prints meanwhile must not get among the figures on stdout."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)

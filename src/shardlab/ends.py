"""How a command ends: whatever stops it becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from shardlab.errors import ExitCode, Interrupted, ShardlabError
from shardlab.process import heeded_signals


class CtrlC(KeyboardInterrupt):
    """Ctrl-C, seen as any KeyboardInterrupt is.

    One of exactly that type, raised within code that Python compiles from a string (a dataclass is made so),
    is remembered, and Python then ends itself by the signal whatever exit code was chosen.
    """


def exit_code_of(command: Callable[[], int]) -> int:
    """Run it; the exit code that it returns, or that belongs to the error or signal that ended it."""
    try:
        with _interrupted_by_signals():
            return command()
    except Interrupted as error:
        _ignore_what_follows()
        print(f"shardlab: {error}", file=sys.stderr)
        return error.code
    except ShardlabError as error:
        print(f"shardlab: {error}", file=sys.stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        # Whoever read the output went away. Python would complain once more while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        _ignore_what_follows()
        print("shardlab: interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)


def _ignore_what_follows() -> None:
    """An impatient second signal must not change the exit code, nor what is said."""
    if threading.current_thread() is threading.main_thread():
        for number in heeded_signals():
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: by an exception, so with a message and nothing left."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise CtrlC if number == signal.SIGINT else Interrupted(number)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, interrupt) for number in heeded_signals() if main}
    try:
        yield
    finally:
        if not isinstance(sys.exception(), CtrlC | Interrupted):  # else a second one must find no default
            for number, handler in before.items():
                signal.signal(number, handler)

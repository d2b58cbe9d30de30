"""What a user is told when something is wrong, and the exit code that goes with it."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    AUDIT = 3
    GATE = 4
    INTERRUPTED = 130


class ShardlabError(Exception):
    """An expected end with a message for the user; anything else is a bug and shows its traceback."""

    exit_code = ExitCode.FAILED


class RunFailed(ShardlabError):
    """The run started and did not end well."""


class RowsLost(RunFailed):
    """Rows could not be written: whoever measures on would lose those that follow too."""


class Interrupted(ShardlabError):
    """A signal asked for the end; ``code`` is the exit code that tells so, ``then`` what became of the work."""

    def __init__(self, number: int, then: str = "") -> None:
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        super().__init__(f"interrupted by {name}" + (f": {then}" if then else ""))
        self.code = int(ExitCode.INTERRUPTED) if number == signal.SIGINT else 128 + number


class UsageError(ShardlabError):
    """Wrong usage: names the rule, the value, the choices and the cure.

    >>> print(UsageError("--store must fit the data path", "reader", ["private", "shared"], "use shared"))
    --store must fit the data path, but got 'reader'; choose from private, shared. Cure: use shared
    """

    exit_code = ExitCode.USAGE

    def __init__(self, rule: str, value: object, choices: Iterable[object] = (), cure: str = "") -> None:
        text = f"{rule}, but got {value!r}"
        listed = ", ".join(str(choice) for choice in choices)
        if listed:
            text += f"; choose from {listed}"
        if cure:
            text += f". Cure: {cure}"
        super().__init__(text)
        self.text = text

    def __reduce__(self) -> tuple[type[ShardlabError], tuple[str]]:
        return _Rebuilt, (self.text,)


class _Rebuilt(UsageError):
    """A UsageError that crossed a process boundary: its text is already made."""

    def __init__(self, text: str) -> None:
        ShardlabError.__init__(self, text)
        self.text = text

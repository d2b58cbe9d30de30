"""How a command ends."""

import subprocess
import sys

import pytest

ENDING = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # whoever started the tests may have had it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
from shardlab.ends import exit_code_of
from shardlab.errors import UsageError

def command():
    {body}
    return 0

raise SystemExit(exit_code_of(command))
"""


def ended(body: str) -> tuple[int, str]:
    """Exit status and stderr of a command with that body."""
    run = subprocess.run(
        [sys.executable, "-c", ENDING.format(body=body)], capture_output=True, text=True, check=False
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize("where", ["{}", "exec({!r})"], ids=["plain code", "code compiled from a string"])
@pytest.mark.parametrize(
    ("name", "code", "said"), [("INT", 130, "interrupted"), ("TERM", 143, "SIGTERM"), ("HUP", 129, "SIGHUP")]
)
def test_a_signal_has_its_exit_code_wherever_it_comes(where: str, name: str, code: int, said: str) -> None:
    found, err = ended(where.format(f"os.kill(os.getpid(), signal.SIG{name})"))
    assert found == code
    assert err.startswith("shardlab: interrupted")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("second", ["INT", "TERM"])
@pytest.mark.parametrize(("first", "code"), [("INT", 130), ("TERM", 143)])
def test_a_second_signal_changes_nothing(first: str, code: int, second: str) -> None:
    once, again = (f"os.kill(os.getpid(), signal.SIG{name})" for name in (first, second))
    body = f"\n    try: {once}\n    finally:\n        import atexit; atexit.register(lambda: {again})"
    found, err = ended(body)
    assert found == code
    assert err.count("\n") == 1


def test_an_error_is_one_line_and_its_code() -> None:
    assert ended("raise UsageError('--n must be even', 3)") == (2, "shardlab: --n must be even, but got 3\n")


def test_what_no_one_expected_keeps_its_traceback() -> None:
    code, err = ended("raise ZeroDivisionError('a bug')")
    assert code == 1
    assert "Traceback" in err


def test_a_reader_that_goes_away_is_no_error_to_complain_of() -> None:
    assert ended("raise BrokenPipeError") == (141, "")

"""The watch as a user without any rights runs it: of a job of their own, and of somebody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ordinary
import pytest
from ordinary import OTHER, USER, Place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or bool(ordinary.reason()), reason=ordinary.reason() or "no /proc"),
]
MIB = 1 << 20


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with ordinary.place() as made:
        yield made


@contextmanager
def job(place: Place, user: int, case: str, mb: int) -> Iterator[int]:
    """The pid of a case of ``truths.py`` once it is there."""
    command = place.command(user, place.folder / "tests/truths.py", case, "--mb", mb)
    with subprocess.Popen(
        command, env=place.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def watched(place: Place, user: int, pid: int, *flags: str) -> tuple[dict[str, Any], str]:
    """The object and what was said; the exit code is 0."""
    flags = flags or ("--census-at", "0.2", "--for-seconds", "0.5")
    command = place.command(user, "-m", "shardlab.watch", "--json", "--results", "none", "--pid", pid, *flags)
    done = subprocess.run(command, env=place.environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("case", "due"),
    # the launcher is watched, too: of what its children rewrote it still has the first copy
    [("private", 3), ("forked", 0), ("rewritten", 2), ("shared", 0)],
)
def test_of_a_job_of_ones_own_all_is_found(case: str, due: float, place: Place):
    found = []
    for mb in (100, 0):
        with job(place, USER, case, mb) as pid:
            assert os.stat(f"/proc/{pid}").st_uid == USER
            told, said = watched(place, USER, pid)
        assert told["unreadable"] == 0, said
        assert told["census"]["frames_known"] is False
        assert not {"PSS", "the census"} & told["reasons"].keys()
        found.append(told["duplicate_bytes"])
    assert found[0] - found[1] == pytest.approx(due * 100 * MIB, abs=0.01 * 100 * MIB)


def test_of_somebody_elses_job_it_is_said_what_is_refused_and_what_would_allow_it(place: Place):
    with job(place, OTHER, "private", 1) as pid:
        told, said = watched(place, USER, pid, "--for-seconds", "6")
    assert told["duplicate_bytes"] is None and told["pss_peak_bytes"] is None
    assert told["rss_peak_bytes"] > 0  # which anybody may know
    for lost in ("PSS", "the census"):
        due = f"it belongs to another user ({OTHER}). Cure: watch as that user, or with sudo"
        assert due in told["reasons"][lost]
    assert "Without PSS of 6 processes: it belongs to another user" in " ".join(said.split())

"""A stage on which a run may go wrong: its own temporary folder, and a look at all that it left behind."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardlab.world import without_rendezvous

MARKER = "SHARDLAB_TEST_SCENE"
CALLS = "SHARDLAB_TEST_CALLS"
PROFILE = (sys.executable, "-m", "shardlab.profile")
TROUBLED = str(Path(__file__).with_name("troubled.py"))
SHM = "/dev/shm"
GONE_WITHIN_S = 5.0
"""How long after the end of a launcher a process of its run may live: what is promised."""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first true value of ``condition``; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)
    return value


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> list[str]:
        """Lines of stderr, notes about flags apart."""
        return [line for line in self.err.splitlines() if line.strip() and not line.startswith("Note: ")]

    @property
    def message(self) -> str:
        """The one line that it said; fails where it said more or less."""
        assert len(self.said) == 1, self.err
        assert self.said[0].startswith("shardlab: "), self.err
        return self.said[0].removeprefix("shardlab: ")


class PrivateMounts:
    """A mount namespace with a /dev/shm of its own, which shows what is left there after all have ended.

    Needs root. Elsewhere ``available`` is false, and commands run in the machine's own.
    """

    def __init__(self) -> None:
        self.available = os.geteuid() == 0 and shutil.which("unshare") is not None
        if self.available:
            script = f"mount -t tmpfs tmpfs {SHM} && echo made && exec cat"
            self._holder = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", script],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert self._holder.stdout is not None
            self.available = self._holder.stdout.readline() == b"made\n"
            if not self.available:
                self.close()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command; it becomes that command, in the same process."""
        return ("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--") if self.available else ()

    @property
    def shm(self) -> Path:
        """Where its /dev/shm can be seen from here."""
        return self.sees(Path(SHM)) if self.available else Path(SHM)

    def mount(self, what: str, folder: Path, *options: str) -> None:
        """Mount there, seen only inside; skips the test where that cannot be."""
        if not self.available:
            pytest.skip("mounting needs root")
        folder.mkdir(exist_ok=True)
        command = (*self.prefix, "mount", "-t", what, *options, what, str(folder))
        subprocess.run(command, check=True)

    def fill(self, folder: Path) -> None:
        """Write there until the file system has no block left."""
        command = ("dd", "if=/dev/zero", f"of={folder}/fill", "bs=4096")
        subprocess.run((*self.prefix, *command), check=False, stderr=subprocess.DEVNULL)

    def sees(self, path: Path) -> Path:
        """Where what lies at ``path`` inside can be read from here."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def close(self) -> None:
        """Give it back, its mounts with it."""
        if hasattr(self, "_holder"):
            self._holder.communicate()


class Run:
    """A command in a session of its own, its output in files: who inherits a pipe cannot make a test wait."""

    def __init__(self, scene: Scene, command: tuple[str, ...], env: dict[str, str]) -> None:
        number = len(scene.runs)
        self._out, self._err = (scene.folder / f"{name}-{number}" for name in ("out", "err"))
        self.started = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, env=env, cwd=scene.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self.process.pid

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to the process group."""
        os.killpg(self.pid, signal.SIGINT)

    def wait(self, seconds: float = 120.0) -> Ended:
        """The end of it, however that comes."""
        code = self.process.wait(seconds)
        text = [path.read_text(errors="replace") for path in (self._out, self._err)]
        return Ended(code, text[0], text[1], time.monotonic() - self.started)


class Scene:
    """Commands started here share a temporary folder, a results folder and a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results"
        self.calls = folder / "calls"
        self.calls.mkdir()
        self.mark = uuid.uuid4().hex
        # Short, as a unix socket's address has 108 bytes; not below pytest's folder.
        self.tmp = Path(tempfile.mkdtemp(prefix="scene-"))
        self.runs: list[Run] = []
        self.mounts = PrivateMounts()
        self._children = {child.pid for child in psutil.Process().children(recursive=True)}
        self._shm = self._shm_names()

    def start(
        self, *flags: str, command: tuple[str, ...] = PROFILE, env: dict[str, str] | None = None
    ) -> Run:
        """Start a profile with ``flags``, results and temporary files in this scene."""
        environment = {
            **without_rendezvous(os.environ),
            MARKER: self.mark,
            CALLS: str(self.calls),
            "TMPDIR": str(self.tmp),
        }
        # The default of --results is the folder of that name in the current one.
        # Whoever runs the tests may have had Ctrl-C ignored, as a shell does for what it puts in the background.
        start = ("env", "--default-signal=INT", "-C", str(self.folder))
        whole = (*self.mounts.prefix, *start, *command, *flags)
        run = Run(self, whole, environment | (env or {}))
        self.runs.append(run)
        return run

    def run(self, *flags: str, seconds: float = 120.0, **how: Any) -> Ended:
        """Start it and wait for its end."""
        return self.start(*flags, **how).wait(seconds)

    def processes(self) -> dict[int, str]:
        """Everything alive that was started here, whoever its parent is now: pid and command line."""
        mark, found = f"{MARKER}={self.mark}".encode(), {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:
                continue
        return found

    def pid_of_rank(self, rank: int) -> int:
        """The process of a rank of ``troubled.py``'s datasets, once it has read a sample."""
        path = self.calls / f"rank-{rank}"
        return int(wait_for(lambda: path.exists() and path.read_text(), f"rank {rank} reads a sample"))

    def wait_until_nobody_lives(self, seconds: float = GONE_WITHIN_S) -> None:
        """Fails when a process started here is alive after so long."""
        deadline = time.monotonic() + seconds
        while left := self.processes():
            assert time.monotonic() < deadline, f"alive after {seconds:g} s: {left}"
            time.sleep(0.05)

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of a results file; none where there is no file."""
        path = self.results / name
        if not path.exists():
            return []
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    def last_row(self) -> dict[str, str]:
        """The last row of runs.csv."""
        return self.rows("runs.csv")[-1]

    def left_behind(self) -> dict[str, Any]:
        """What should not be there any more, by kind; empty when all is clean."""
        children = {child.pid: child.name() for child in psutil.Process().children(recursive=True)}
        found = {
            "processes": self.processes(),
            "children": {pid: name for pid, name in children.items() if pid not in self._children},
            SHM: sorted(self._shm_names() - self._shm),
            "temporary files": sorted(path.name for path in self.tmp.iterdir()),
        }
        return {kind: what for kind, what in found.items() if what}

    def _shm_names(self) -> set[str]:
        return set(os.listdir(self.mounts.shm)) if self.mounts.shm.is_dir() else set()

    def close(self) -> None:
        """End what is left, whatever it is."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for run in self.runs:
            run.process.wait()
        self.mounts.close()
        shutil.rmtree(self.tmp, ignore_errors=True)


@contextmanager
def stage(folder: Path, seed: Path | None = None) -> Iterator[Scene]:
    """A scene, with the results of ``seed`` in it. Fails when anything is left, or a row of the seed is not."""
    scene = Scene(folder)
    try:
        if seed is not None:
            shutil.copytree(seed, scene.results)
        yield scene
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := scene.left_behind()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"left behind: {left}"
        for file in seed.iterdir() if seed is not None else ():
            kept = (scene.results / file.name).read_bytes()
            assert kept.startswith(file.read_bytes()), f"rows of {file.name} are lost"
    finally:
        scene.close()

"""Puppets and monitors that end with the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardlab.measure import monitor
from shardlab.measure.monitor import MonitorConfig

SOURCE = str(Path(monitor.__file__).parents[2])


class Puppet:
    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("puppet.py"))]
        env = {**os.environ, "PYTHONPATH": SOURCE}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.pid = self.process.pid

    def send(self, *command: object) -> None:
        assert self.process.stdin
        self.process.stdin.write((" ".join(map(str, command)) + "\n").encode())
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().decode().strip()

    def ask(self, *command: object) -> str:
        self.send(*command)
        return self.answer()


@pytest.fixture
def puppets() -> Iterator[Callable[[int], list[Puppet]]]:
    made: list[Puppet] = []

    def make(count: int) -> list[Puppet]:
        made.extend(new := [Puppet() for _ in range(count)])
        for puppet in new:
            puppet.ask("read_all")  # its imports are done when it answers
        return new

    yield make
    for puppet in made:
        puppet.process.stdin and puppet.process.stdin.close()
        puppet.process.kill()
        puppet.process.wait()
        puppet.process.stdout and puppet.process.stdout.close()


@pytest.fixture
def start_monitor(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(**settings: Any) -> subprocess.Popen[bytes]:
        values = {"run_id": "run", "node": "here", "parent_pid": os.getpid(), **settings}
        started.append(monitor.start(tmp_path, MonitorConfig(**values)))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()

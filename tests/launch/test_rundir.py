"""The private folder of a run: it goes with its run, and what a killed run left goes with the next."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardlab.launch import rundir

CREATE = """
import sys
from shardlab.launch import rundir
print(rundir.create(), flush=True)
sys.stdin.read()
"""
SIGN_SOCKETS = """
import os
from multiprocessing.util import get_temp_dir
from shardlab.launch import rundir
rundir.sign_sockets()
print(get_temp_dir(), flush=True)
os._exit(0)
"""


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own, for this process and those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@contextmanager
def owner_of_a_folder() -> Iterator[Path]:
    """The folder of another process, which lives until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", CREATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def test_a_folder_goes_with_its_run(temp: Path) -> None:
    with rundir.run_folder() as folder:
        (folder / "anything").write_text("x")
        assert folder.parent == temp
    assert not list(temp.iterdir())


def test_a_folder_goes_with_a_run_that_fails(temp: Path) -> None:
    with pytest.raises(ZeroDivisionError), rundir.run_folder():
        raise ZeroDivisionError
    assert not list(temp.iterdir())


def test_only_its_owner_can_look_into_it(temp: Path) -> None:
    with rundir.run_folder() as folder:
        assert folder.stat().st_mode & 0o077 == 0


def test_the_folder_of_a_living_owner_is_kept(temp: Path) -> None:
    with owner_of_a_folder() as folder:
        assert rundir.sweep() == []
        assert folder.is_dir()


def test_the_folder_of_a_dead_owner_is_swept(temp: Path) -> None:
    with owner_of_a_folder() as folder:
        pass
    assert folder.is_dir()
    assert rundir.sweep() == [folder]
    assert not folder.exists()


def test_a_new_run_sweeps_before_it_starts(temp: Path) -> None:
    with owner_of_a_folder() as dead:
        pass
    with rundir.run_folder() as mine:
        assert not dead.exists()
        assert mine.is_dir()


def test_a_process_number_that_came_back_is_not_its_owner(temp: Path) -> None:
    with owner_of_a_folder() as folder:
        pid, _, started = (folder / rundir.OWNER).read_text().partition(" ")
        (folder / rundir.OWNER).write_text(f"{pid} {int(started) - 1}")
        assert rundir.sweep() == [folder]


def test_a_folder_that_nobody_has_signed_yet_is_kept(temp: Path) -> None:
    folder = temp / f"{rundir.PREFIX}new"
    folder.mkdir()
    assert rundir.sweep() == []
    assert folder.is_dir()


@pytest.mark.parametrize("owner", ["", "nonsense", "-1 5"])
def test_a_folder_with_an_unreadable_owner_is_kept(owner: str, temp: Path) -> None:
    folder = temp / f"{rundir.PREFIX}odd"
    folder.mkdir()
    (folder / rundir.OWNER).write_text(owner)
    assert rundir.sweep() == []
    assert folder.is_dir()


def test_folders_of_other_programs_are_kept(temp: Path) -> None:
    for name in ("pymp-other", "torchelastic_other", "mine"):
        (temp / name).mkdir()
    assert rundir.sweep() == []
    assert len(list(temp.iterdir())) == 3


def test_sockets_of_a_killed_launcher_are_swept(temp: Path) -> None:
    command = [sys.executable, "-c", SIGN_SOCKETS]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    folder = Path(printed.strip())
    assert folder.parent == temp
    assert folder.is_dir()
    assert rundir.sweep() == [folder]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_folders_of_other_users_are_kept(temp: Path) -> None:
    with owner_of_a_folder() as folder:
        pass
    os.chown(folder, 12345, -1)
    assert rundir.sweep() == []
    assert folder.is_dir()

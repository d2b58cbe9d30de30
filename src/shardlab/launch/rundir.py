"""What a run keeps outside its processes: a private folder, and names of semaphores in shared memory.

Removed by its launcher, or swept by the next run where all was killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import get_temp_dir
from pathlib import Path

from shardlab.process import SHM, has_ended, identity, remove_run_folder

PREFIX = "shardlab-run-"
SOCKETS_PREFIX = "pymp-"  # multiprocessing's own; swept only where its owner signed it
OWNER = "owner"
SEMAPHORES_PREFIX = "shardlab-"


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder in the temporary folder, gone at the end."""
    folder = create()
    try:
        yield folder
    finally:
        remove_run_folder(folder)
        sweep()  # a control run may have been killed


def create() -> Path:
    """A new folder that says which process owns it; what the dead left is swept first."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _sign(folder)
    return folder


def sign_sockets() -> None:
    """Sign the folder in which multiprocessing keeps this process' sockets, so that it can be swept too."""
    _sign(Path(get_temp_dir()))


def sign_semaphores() -> None:
    """Name the semaphores of this process, and of those that it starts, after it, so that they can be swept.

    Those of spawned processes have names until multiprocessing's tracker ends, and keep them where it is killed.
    """
    owner = (identity(os.getpid()) or "").replace(" ", "-")
    multiprocessing.current_process()._config["semprefix"] = f"/{_semaphores()}{owner}"  # type: ignore[attr-defined]


def sweep(parent: Path | None = None) -> list[Path]:
    """Remove the folders and semaphores whose owner is no more; the folders that were removed."""
    _sweep_semaphores()
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    removed = []
    for folder in [*parent.glob(PREFIX + "*"), *parent.glob(SOCKETS_PREFIX + "*")]:
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_left_behind(folder):
                remove_run_folder(folder)
                removed.append(folder)
    return removed


def _semaphores() -> str:
    """How their names begin. A container may share /dev/shm with others, where a number is another process."""
    with contextlib.suppress(OSError):
        return f"{SEMAPHORES_PREFIX}{os.stat('/proc/self/ns/pid').st_ino}-"
    return SEMAPHORES_PREFIX


def _sweep_semaphores() -> None:
    start = f"sem.{_semaphores()}"
    for file in SHM.glob(start + "*"):
        owner = file.name.removeprefix(start).rpartition("-")[0].replace("-", " ")
        with contextlib.suppress(OSError):
            if file.stat().st_uid == os.getuid() and has_ended(owner):
                file.unlink()


def _sign(folder: Path) -> None:
    (folder / OWNER).write_text(identity(os.getpid()) or "")


def _is_left_behind(folder: Path) -> bool:
    """True where the process named as owner ended. A folder without a name may be about to get one."""
    try:
        owner = (folder / OWNER).read_text()
    except FileNotFoundError:
        return False
    return has_ended(owner)

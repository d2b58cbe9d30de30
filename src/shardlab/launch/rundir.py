"""The private folder of a run: removed by its launcher, or swept by the next run where all was killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import get_temp_dir
from pathlib import Path

PREFIX = "shardlab-run-"
SOCKETS_PREFIX = "pymp-"  # multiprocessing's own; swept only where its owner signed it
OWNER = "owner"


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder in the temporary folder, gone at the end."""
    sweep()
    folder = create()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def create() -> Path:
    """A new folder that says which process owns it."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _sign(folder)
    return folder


def sign_sockets() -> None:
    """Sign the folder in which multiprocessing keeps this process' sockets, so that it can be swept too."""
    _sign(Path(get_temp_dir()))


def sweep(parent: Path | None = None) -> list[Path]:
    """Remove the folders whose owner is no more; those that were removed."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    removed = []
    for folder in [*parent.glob(PREFIX + "*"), *parent.glob(SOCKETS_PREFIX + "*")]:
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_left_behind(folder):
                shutil.rmtree(folder)
                removed.append(folder)
    return removed


def _sign(folder: Path) -> None:
    (folder / OWNER).write_text(_identity(os.getpid()) or "")


def _is_left_behind(folder: Path) -> bool:
    """True where the process named as owner ended. A folder without a name may be about to get one."""
    try:
        owner = (folder / OWNER).read_text()
    except FileNotFoundError:
        return False
    pid = owner.partition(" ")[0]
    return pid.isdigit() and _identity(int(pid)) != owner


def _identity(pid: int) -> str | None:
    """``pid start-time``: a process number alone comes back for another process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return str(pid) if _lives(pid) else None
    return f"{pid} {stat.rpartition(')')[2].split()[19]}"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not Path("/proc/self/stat").exists()

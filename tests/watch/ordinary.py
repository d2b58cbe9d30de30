"""Python as a user who has no rights at all, wherever the interpreter and this source lie.

An interpreter below a home folder may not be read by others. So its folder, its packages and this source are shown to
the user at a place of their own, in a mount namespace that ends with the process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from command import SOURCE

USER, OTHER = 65534, 65533
AS = "setpriv --reuid {user} --regid {user} --clear-groups --bounding-set=-all --inh-caps=-all"
TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Place:
    """Where the user finds what is needed; ``home`` is the user's own."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def command(self, user: int, *argv: object) -> list[str]:
        """Python with these arguments; the process that is started becomes it."""
        shown = {
            "prefix": sys.base_prefix, "packages": Path(np.__file__).parents[1], "source": SOURCE, "tests": TESTS,
        }  # fmt: skip
        binds = [f"mount --bind '{path}' {self.folder}/{name}" for name, path in shown.items()]
        python = f"{self.folder}/prefix/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        script = " && ".join([*binds, f"cd {self.home}", f'exec {AS.format(user=user)} {python} "$@"'])
        return ["unshare", "-m", "sh", "-c", script, "sh", *map(str, argv)]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": f"{self.folder}/packages:{self.folder}/source",
            "LD_LIBRARY_PATH": f"{self.folder}/prefix/lib",  # of a shared build
            "HOME": str(self.home), "TMPDIR": str(self.home), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip


@contextmanager
def place() -> Iterator[Place]:
    """Made for the time being."""
    folder = Path(tempfile.mkdtemp(prefix="shardlab-ordinary-"))
    folder.chmod(0o755)
    shown = [folder / name for name in ("prefix", "packages", "source", "tests")]
    for inside in (*shown, folder / "home"):
        inside.mkdir()
    (folder / "home").chmod(0o777)
    try:
        yield Place(folder)
    finally:
        for inside in shown:
            inside.rmdir()  # empty here; were anything shown it would fail, and leave that alone
        shutil.rmtree(folder)


def reason() -> str:
    """Why this cannot be done here; empty where it can."""
    if os.geteuid() != 0:
        return "only root becomes another user"
    if any(shutil.which(name) is None for name in ("unshare", "setpriv")):
        return "needs unshare and setpriv"
    can = subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    return "" if can else "this root may not mount"

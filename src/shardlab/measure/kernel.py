"""What this machine is and what its kernel lets be read; asked once, before a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from shardlab.measure import procfs
from shardlab.measure.cgroup import CGROUP, cpus, memory_limit, text
from shardlab.measure.procfs import PROC
from shardlab.world import host_name

GIT_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Capabilities:
    """What the kernel offers. ``reasons`` says, by field, why something is missing."""

    smaps_rollup: bool
    pagemap: bool
    children_file: bool
    cgroup_version: int | None
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int | None
    thp: str | None
    reasons: dict[str, str] = field(default_factory=dict)


def capabilities(root: Path = PROC, cgroup_root: Path = CGROUP) -> Capabilities:
    """Find out by reading, from files alone, so that a folder with the same files can stand for a kernel.

    The limit is the tightest one of this process's cgroup and its ancestors, and the usage is that of the
    cgroup that has it; ``thp`` is the mode in brackets of ``transparent_hugepage/enabled``.
    """
    limit = memory_limit(root, cgroup_root)
    thp_file = cgroup_root.parent.parent / "kernel/mm/transparent_hugepage/enabled"
    mode = re.search(r"\[(\w+)\]", text(thp_file))
    found = Capabilities(
        smaps_rollup=procfs.smaps_rollup(text(root / "self/smaps_rollup")).pss_bytes is not None,
        pagemap=_readable(root / "self/pagemap"),
        children_file=any((root / "self/task").glob("*/children")),
        cgroup_version=limit.version,
        cgroup_limit_bytes=limit.limit_bytes,
        cgroup_used_bytes=limit.used_bytes,
        thp=mode[1] if mode else None,
    )
    found.reasons.update(_reasons(found, root))
    return found


def shm_free_bytes(path: str = "/dev/shm") -> int | None:
    """Bytes that may still be written under ``path``; ``None`` where there is no such folder."""
    try:
        info = os.statvfs(path)
    except OSError:
        return None
    return info.f_bavail * info.f_frsize


def environment(root: Path = PROC, cgroup_root: Path = CGROUP) -> dict[str, str | int | float | None]:
    """The columns of ``runs.csv`` that say where it ran. Imports nothing of what it names the version of."""
    able = capabilities(root, cgroup_root)
    sha, dirty = git_state(Path(__file__).parent)
    cpu = re.search(r"^model name\s*:\s*(.+)$", text(root / "cpuinfo"), re.MULTILINE)
    return {
        "git_sha": sha,
        "git_dirty": dirty,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "accelerate", "numpy")},
        "kernel": platform.release(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu[1] if cpu else platform.processor() or None,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ram_bytes": os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cgroup_version": able.cgroup_version,
        "cgroup_limit_bytes": able.cgroup_limit_bytes,
        "cgroup_cpus": cpus(root, cgroup_root),
        "thp": able.thp,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "load_1m": round(os.getloadavg()[0], 2),
        "hostname": host_name(),
        "argv": shlex.join(sys.argv),
    }


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Commit, and whether tracked or new files differ from it, of the checkout that has this folder's files.

    ``(None, None)`` where it is installed, if into a folder of another checkout, and without git.
    """
    if _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None, None
    sha = _git(folder, "rev-parse", "HEAD")
    # What was measured before, with the same code, is no change to it.
    changes = _git(folder, "status", "--porcelain", "--", ":(top)", ":(top,exclude)results")
    return sha, None if changes is None else bool(changes)


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, env=env, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _reasons(found: Capabilities, root: Path) -> dict[str, str]:
    system = "" if root.is_dir() else f"{platform.system()} has no {root}; "
    why = {
        "smaps_rollup": f"{system}no PSS split in {root}/self/smaps_rollup (Linux 4.14 and newer have it)",
        "pagemap": f"{system}{root}/self/pagemap cannot be read",
        "children_file": f"{system}the kernel has no CONFIG_PROC_CHILDREN, so all processes are looked at",
        "cgroup_version": f"{system}no cgroup controls memory",
        "cgroup_limit_bytes": f"{system}no cgroup limits memory",
        "cgroup_used_bytes": f"{system}no cgroup limits memory, so none is watched",
        "thp": f"{system}the kernel has no transparent huge pages",
    }
    return {name: reason for name, reason in why.items() if getattr(found, name) in (None, False)}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _readable(path: Path) -> bool:
    try:
        with path.open("rb", buffering=0) as file:
            return bool(file.read(8))
    except OSError:
        return False

"""How much memory can still be taken here before the kernel has to kill somebody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardlab.errors import RunFailed

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),  # by version 1
    "": ("memory.max", "memory.current", ""),
}


def refuse_more_than_there_is(nbytes: int) -> None:
    """A memory file has no size limit of its own: the kernel would fill it until it has to kill somebody."""
    free = free_bytes()
    if free is not None and nbytes > free:
        raise RunFailed(
            f"a shared copy needs {nbytes / 2**20:.0f} MiB of memory, {free / 2**20:.0f} MiB are free: "
            "use --store mmap"
        )


def free_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """What the machine and this process's cgroups still allow; None where nothing says so."""
    return min([*_of_machine(proc / "meminfo"), *_of_groups(proc / "self/cgroup", cgroup)], default=None)


def _of_machine(meminfo: Path) -> Iterator[int]:
    lines = dict(line.split(":", 1) for line in _text(meminfo).splitlines() if ":" in line)
    if "MemAvailable" in lines:
        yield sum(int(lines.get(name, "0").split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))


def _of_groups(own: Path, cgroup: Path) -> Iterator[int]:
    """Limit less usage of each group that has a limit; pages of files can be given up."""
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        for kind in {"memory", ""} & set(controllers.split(",")):
            mount = cgroup / kind
            folder = mount / path.strip("/")
            for group in (folder, *folder.parents):
                yield from _of_group(group, *_FILES[kind])
                if group == mount:
                    break


def _of_group(group: Path, limit_file: str, used_file: str, total: str) -> Iterator[int]:
    limit, used = _text(group / limit_file).strip(), _text(group / used_file).strip()
    if limit.isdigit() and used.isdigit():
        stat = dict(line.split() for line in _text(group / "memory.stat").splitlines())
        files = sum(int(stat.get(f"{total}{which}_file", 0)) for which in ("active", "inactive"))
        yield max(0, int(limit) - int(used) + files)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

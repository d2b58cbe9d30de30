"""What the kernel lets this process know of the others, why not the rest, and what would allow it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardlab.measure import procfs
from shardlab.measure.cgroup import CGROUP, memory_groups, text
from shardlab.measure.procfs import PROC

CAP_SYS_PTRACE = 19
PSS, CENSUS, MEMBERS, LIMIT, WINDOWS = "PSS", "the census", "processes", "the memory limit", "what Windows holds"

_WSL2 = re.compile("microsoft-standard|WSL2")  # version 1 says Microsoft, and is no Linux kernel


@dataclass(frozen=True)
class Refusal:
    """Something that cannot be known: what is lost, why, and the cure; ``pids`` where it is of some alone."""

    lost: str
    reason: str
    cure: str
    pids: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """For a person."""
        of = f" of {len(self.pids)} processes" if len(self.pids) > 1 else f" of {self.pids[0]}" if self.pids else ""
        return f"Without {self.lost}{of}: {self.reason}. Cure: {self.cure}."


def refusals(
    pids: Sequence[int], root: Path = PROC, cgroup_root: Path = CGROUP, uid: int | None = None
) -> tuple[Refusal, ...]:
    """What cannot be known of these processes, system by system and process by process. Nothing: all can."""
    if not root.is_dir():
        return (
            Refusal(f"{PSS}, {CENSUS} and {LIMIT}", f"this system has no {root}; RSS and USS are from psutil",
                    "run the job on Linux, in a container or a virtual machine"),
        )  # fmt: skip
    uid = os.geteuid() if uid is None else uid
    return (
        *_of_the_system(root, cgroup_root, uid),
        *_of_processes(pids, root, uid),
    )


def _of_the_system(root: Path, cgroup_root: Path, uid: int) -> Iterator[Refusal]:
    version = text(root / "version")
    if "gVisor" in version or not (root / "self/pagemap").exists():
        yield Refusal(CENSUS, *_no_pagemap(version))
    elif root == PROC and not _pagemap_is_true():
        yield Refusal(CENSUS, "pagemap shows nothing of memory that is there (a sandbox?)",
                      "run the job outside the sandbox")  # fmt: skip
    if not any("Pss:" in text(root / "self" / name) for name in ("smaps_rollup", "smaps")):
        yield Refusal(PSS, "neither smaps_rollup nor smaps tells it, so only RSS, which counts a shared page often",
                      "a kernel with CONFIG_PROC_PAGE_MONITOR")  # fmt: skip
    if uid and re.search(r"hidepid=(?:[124]|noaccess|invisible|ptraceable)", text(root / "self/mounts")):
        yield Refusal(MEMBERS, "/proc is mounted with hidepid, so processes of others are not seen",
                      "run as the job's user, as root, or in the group that gid= of the mount names")  # fmt: skip
    if memory_groups(root, cgroup_root)[0] is None:
        yield Refusal(LIMIT, "no cgroup controls memory here", "none is needed where nothing limits the job")
    if _WSL2.search(version):
        yield Refusal(WINDOWS, "WSL 2 is a virtual machine: limits of the machine are its own, Windows may have less",
                      "look at free memory in Windows too; memory= in .wslconfig is what WSL gets")  # fmt: skip
    if root == PROC and not _may_call_process_vm_readv():
        yield Refusal("process_vm_readv", "a filter (seccomp) refuses it; /proc/PID/mem is read, a little slower",
                      "docker run --cap-add SYS_PTRACE, or another seccomp profile")  # fmt: skip


def _no_pagemap(version: str) -> tuple[str, str]:
    """Which system has none, and what would have one."""
    if "gVisor" in version:
        return "gVisor has no pagemap", "run the job on a host kernel (runc instead of runsc)"
    if "microsoft" in version.lower() and not _WSL2.search(version):
        return "WSL 1 has no pagemap", "wsl --set-version DISTRIBUTION 2"
    return "this kernel has no pagemap", "a kernel with CONFIG_PROC_PAGE_MONITOR"


def _of_processes(pids: Sequence[int], root: Path, uid: int) -> Iterator[Refusal]:
    by_reason: dict[tuple[str, str, str], list[int]] = {}
    for pid in pids:
        for lost, file in ((PSS, "smaps_rollup"), (CENSUS, "mem")):
            why = _refused(pid, file, root, uid)
            if why:
                by_reason.setdefault((lost, *why), []).append(pid)
    for (lost, reason, cure), of in by_reason.items():
        yield Refusal(lost, reason, cure, tuple(of))


def _refused(pid: int, file: str, root: Path, uid: int) -> tuple[str, str] | None:
    """Reason and cure where a file of a process may not be opened."""
    if _opens(pid, file, root):
        return None
    if uid == 0 and not _has_capability(CAP_SYS_PTRACE, root):
        return "this root may not trace (a container?)", "docker run --cap-add SYS_PTRACE"
    match = re.search(r"^Uid:\s+(\d+)", _status(pid, root), re.MULTILINE)
    if match and int(match[1]) != uid:
        return f"it belongs to another user ({match[1]})", "watch as that user, or with sudo"
    scope = text(root / "sys/kernel/yama/ptrace_scope") if _opens(pid, "smaps_rollup", root) else ""
    if scope == "1":  # it guards writing and reading memory, not what smaps says
        return (
            "kernel.yama.ptrace_scope is 1, and this job was not started from here",
            "start it by `python -m shardlab.watch -- COMMAND`, or `sudo sysctl kernel.yama.ptrace_scope=0`, or sudo",
        )
    if scope in ("2", "3"):
        cure = "sudo" if scope == "2" else "a restart of the machine with a smaller value"
        return f"kernel.yama.ptrace_scope is {scope}", cure
    return "it does not let itself be read (setuid, or PR_SET_DUMPABLE is 0)", "sudo, or a program that is not setuid"


def _opens(pid: int, file: str, root: Path) -> bool:
    """False where the kernel refuses it; a process that is gone refuses nothing."""
    try:
        os.close(os.open(f"{root}/{pid}/{file}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EPERM)
    return True


def _has_capability(number: int, root: Path) -> bool:
    match = re.search(r"^CapEff:\s+([0-9a-f]+)", text(root / "self/status"), re.MULTILINE)
    return match is None or bool(int(match[1], 16) >> number & 1)


def _status(pid: int, root: Path) -> str:
    try:
        return procfs.read(pid, "status", root)
    except OSError:
        return ""


def _pagemap_is_true() -> bool:
    """Whether a page that was just written is said to be there."""
    page = os.sysconf("SC_PAGESIZE")
    with mmap.mmap(-1, page) as room:
        room[0] = 1
        held = ctypes.c_char.from_buffer(room)
        address = ctypes.addressof(held)
        try:
            with open("/proc/self/pagemap", "rb", buffering=0) as file:
                entry = int.from_bytes(os.pread(file.fileno(), 8, address // page * 8), "little")
        except OSError:
            entry = 0
        del held
    return entry >> 63 == 1


def _may_call_process_vm_readv() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "process_vm_readv"):
        return False
    source, target = ctypes.create_string_buffer(b"a"), ctypes.create_string_buffer(1)
    near, far = ((ctypes.c_size_t * 2)(ctypes.addressof(room), 1) for room in (target, source))
    done: int = libc.process_vm_readv(os.getpid(), near, ctypes.c_ulong(1), far, ctypes.c_ulong(1), ctypes.c_ulong(0))
    return done == 1

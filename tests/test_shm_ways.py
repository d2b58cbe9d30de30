"""The ways in which a memory file is reached where /proc does not lead to it, and what stands in for it."""

from __future__ import annotations

import ctypes
import dataclasses
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardlab import shm
from shardlab.errors import RunFailed
from shardlab.shm import _named, _offer, _room

CONTENT = bytes(range(256)) * 64
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces and change users")
FORK = multiprocessing.get_context("fork")


def filled(name: str = "test") -> shm.Handle:
    file = shm.MemoryFile(name, len(CONTENT))
    file.buffer[:] = np.frombuffer(CONTENT, np.uint8)
    return file.seal()


def elsewhere(handle: shm.Handle, *prefix: str, socket: bool = True) -> str:
    """What a process that knows the handle alone says: True, or its error."""
    handle = handle if socket else dataclasses.replace(handle, socket="")
    code = f"""
from shardlab.errors import RunFailed
from shardlab.shm import *
try:
    print(attach({handle!r}).tobytes() == bytes(range(256)) * 64)
except RunFailed as error:
    print(error)
"""
    command = [*prefix, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() or done.stderr


# Over the socket


@AS_ROOT
@pytest.mark.parametrize("socket", [True, False])
def test_a_process_in_a_pid_namespace_of_its_own_gets_the_descriptor_over_the_socket(socket: bool) -> None:
    said = elsewhere(filled(), "unshare", "--pid", "--fork", "--mount-proc", socket=socket)
    assert (said == "True") is socket, said
    if not socket:
        assert "or lives in another process namespace" in said


@pytest.mark.parametrize("wrong", [{"fd": 987_654}, {"pid": 1 << 22}, {"pid": os.getppid()}])
def test_where_proc_leads_nowhere_or_astray_the_socket_leads_to_the_file(wrong: dict[str, int]) -> None:
    assert shm.attach(dataclasses.replace(filled(), **wrong)).tobytes() == CONTENT


def test_the_number_that_stands_for_another_file_in_another_process_is_not_taken_for_ours(
    tmp_path: Path,
) -> None:
    """As where process ids mean something else: there is such a file, with the same number and size."""
    handle = filled()
    other = tmp_path / "other"
    other.write_bytes(bytes(len(CONTENT) + shm.NONCE_BYTES))
    with other.open() as file:
        assert shm.attach(dataclasses.replace(handle, fd=file.fileno())).tobytes() == CONTENT


def refused(dumpable: int, handle: shm.Handle, pipe: Any) -> None:
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    try:
        pipe.send(shm.attach(handle).tobytes() == CONTENT)
    except RunFailed as error:
        pipe.send(str(error))


@AS_ROOT
def test_another_user_gets_nothing_over_either_way() -> None:
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=refused, args=(0, filled(), theirs))
    process.start()
    said = ours.recv()
    process.join()
    assert "cannot be opened (Permission denied)" in said


def hold_where_proc_is_refused(pipe: Any) -> None:
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: not even the same user may look at /proc/<pid>/fd
    pipe.send(filled())
    pipe.recv()


def attach_as_nobody(handle: shm.Handle, pipe: Any) -> None:
    os.setresuid(65534, 65534, 65534)
    refused = 0
    try:
        os.open(f"/proc/{handle.pid}/fd/{handle.fd}", os.O_RDONLY)
    except PermissionError:
        refused = 1
    pipe.send((refused, shm.attach(handle).tobytes() == CONTENT))


@AS_ROOT
def test_where_proc_is_refused_to_the_same_user_the_socket_is_not() -> None:
    held, theirs = FORK.Pipe()
    holder = FORK.Process(target=hold_where_proc_is_refused, args=(theirs,))
    holder.start()
    handle = held.recv()
    ours, theirs = FORK.Pipe(duplex=False)
    asking = FORK.Process(target=attach_as_nobody, args=(handle, theirs))
    asking.start()
    assert ours.recv() == (1, True)
    held.send("end")
    for process in (asking, holder):
        process.join()


def test_a_wrong_nonce_gets_nothing_over_the_socket() -> None:
    handle = filled()
    with pytest.raises(OSError):
        _offer.receive(handle.socket, "ab" * shm.NONCE_BYTES)


def test_a_file_that_was_withdrawn_is_not_handed_out_and_stays_mapped() -> None:
    handle = filled()
    attached = shm.attach(handle)
    shm.withdraw(handle)
    with pytest.raises(RunFailed):
        shm.attach(handle)
    assert attached.tobytes() == CONTENT


def test_one_who_asks_and_says_nothing_does_not_stop_the_others_for_ever() -> None:
    import socket

    handle = filled()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect("\0" + handle.socket)
        started = time.monotonic()
        shm.attach(dataclasses.replace(handle, pid=1 << 22))
        assert time.monotonic() - started < 3


def ask_of_a_child(handle: shm.Handle, pipe: Any) -> None:
    """This child inherited the socket: it must neither answer for its parent nor take its place."""
    mine = filled("child")
    right = shm.attach(dataclasses.replace(mine, pid=1 << 22)).tobytes() == CONTENT
    pipe.send((mine.socket != handle.socket, right))


def test_a_forked_child_offers_its_own_files_at_an_address_of_its_own() -> None:
    handle = filled()
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=ask_of_a_child, args=(handle, theirs))
    process.start()
    assert ours.recv() == (True, True)
    process.join()
    assert shm.attach(dataclasses.replace(handle, pid=1 << 22)).tobytes() == CONTENT


def hold_and_fork(pipe: Any) -> None:
    handle = filled()
    child = os.fork()
    if child == 0:
        pipe.recv()
        os._exit(0)
    pipe.send(handle)
    os._exit(0)


def test_the_address_ends_with_its_process_though_a_child_of_it_lives() -> None:
    ours, theirs = FORK.Pipe()
    holder = FORK.Process(target=hold_and_fork, args=(theirs,))
    holder.start()
    handle = ours.recv()
    holder.join()
    started = time.monotonic()
    with pytest.raises(RunFailed, match="that process ended"):
        shm.attach(handle)
    assert time.monotonic() - started < 3
    ours.send("end")


# Written by all


def write_word(handle: shm.Handle, value: int) -> None:
    shm.attach_shared(handle)[value] = value


def test_what_one_process_writes_to_a_shared_file_all_see() -> None:
    handle = shm.create_shared("test", 4096)
    mine = shm.attach_shared(handle)
    processes = [FORK.Process(target=write_word, args=(handle, value)) for value in (3, 5)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert np.flatnonzero(mine).tolist() == mine[mine > 0].tolist() == [3, 5]
    shm.withdraw(handle)


# Without memory files


@pytest.fixture
def no_memfd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A system that has none, and a folder in the place of /dev/shm."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(_named, "IN_MEMORY", tmp_path)
    yield tmp_path


def test_a_file_with_a_name_holds_the_same_bytes(no_memfd: Path) -> None:
    handle = filled()
    assert [str(path) for path in no_memfd.iterdir()] == [handle.path]
    assert elsewhere(handle) == "True"
    first = shm.attach(handle)
    first[5000] = 99
    assert shm.attach(handle).tobytes() == CONTENT


def test_a_file_with_a_name_can_be_written_by_all_where_that_was_asked_for(no_memfd: Path) -> None:
    handle = shm.create_shared("test", 4096)
    shm.attach_shared(handle)[7] = 1
    assert shm.attach_shared(handle)[7] == 1
    shm.withdraw(handle)
    assert not list(no_memfd.iterdir())


def test_another_file_under_its_name_is_refused(no_memfd: Path) -> None:
    handle = filled()
    Path(handle.path).unlink()
    Path(handle.path).write_bytes(bytes(len(CONTENT) + shm.NONCE_BYTES))
    with pytest.raises(RunFailed, match="is not the shared copy that was announced"):
        shm.attach(handle)


NAMED = """
import os, sys
from pathlib import Path
del os.memfd_create
from shardlab import shm
from shardlab.shm import _named
_named.IN_MEMORY = Path(sys.argv[1])
shm.MemoryFile("test", 100).seal()
shm.create_shared("ring", 100)
print(len(list(Path(sys.argv[1]).iterdir())), flush=True)
{end}
"""


def named(folder: Path, end: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", NAMED.format(end=end), str(folder)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def test_files_with_a_name_go_with_the_process_that_made_them(tmp_path: Path) -> None:
    for end in ("pass", "sys.exit(1)", "raise ValueError"):
        assert named(tmp_path, end) == "2"
        assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_goes_with_the_next_and_what_is_held_does_not(
    no_memfd: Path, tmp_path: Path
) -> None:
    held = filled("held")
    assert named(tmp_path, "os.kill(os.getpid(), 9)") == "3"
    assert len(list(tmp_path.iterdir())) == 3
    assert named(tmp_path, "pass") == "3"
    assert [str(path) for path in tmp_path.iterdir()] == [held.path]
    assert shm.attach(held).tobytes() == CONTENT


@AS_ROOT
def test_a_dev_shm_without_room_is_passed_over_for_the_temporary_folder() -> None:
    code = """
import os, tempfile
del os.memfd_create
from shardlab import shm
file = shm.MemoryFile("test", 9 << 20)
file.buffer[:] = 7
handle = file.seal()
print(os.path.dirname(handle.path) == tempfile.gettempdir(), int(shm.attach(handle).sum()) == 7 * (9 << 20))
"""
    command = f"mount -t tmpfs -o size=8m none /dev/shm && exec {sys.executable} -c '{code}'"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True True\n", done.stderr


# How much there is


def test_the_room_is_what_the_tightest_of_machine_and_groups_leaves(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\nSwapFree: 100 kB\nHugePages: 0\n")
    assert _room.free_bytes(proc, groups) == 600 << 10
    (proc / "self/cgroup").write_text("0::/a/b\n")
    (groups / "a/b").mkdir(parents=True)
    for group, limit in ((groups / "a/b", "max"), (groups / "a", str(400 << 10))):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{300 << 10}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {10 << 10}\nactive_file {20 << 10}\n")
    assert _room.free_bytes(proc, groups) == 130 << 10  # 400 - 300, and 30 of files


def test_the_older_interface_of_groups_is_read_as_well(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("9:name=systemd:/\n4:memory:/job\n0::/\n")
    (groups / "memory/job").mkdir(parents=True)
    (groups / "memory/job/memory.limit_in_bytes").write_text("1000\n")
    (groups / "memory/job/memory.usage_in_bytes").write_text("900\n")
    (groups / "memory/job/memory.stat").write_text("inactive_file 5\ntotal_inactive_file 50\n")
    assert _room.free_bytes(proc, groups) == 150


def test_a_group_that_is_over_its_limit_has_no_room_and_none_says_nothing(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert _room.free_bytes(proc, groups) is None
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/\n")
    groups.mkdir()
    (groups / "memory.max").write_text("100")
    (groups / "memory.current").write_text("120")
    assert _room.free_bytes(proc, groups) == 0

"""Memory files: every process of the node reads the same bytes, none can change them, nothing stays behind."""

from __future__ import annotations

import dataclasses
import mmap
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardlab import shm
from shardlab.errors import RunFailed

CONTENT = bytes(range(256)) * 64  # 16 KiB


def filled(content: bytes = CONTENT, name: str = "test") -> shm.Handle:
    file = shm.MemoryFile(name, len(content))
    file.buffer[:] = np.frombuffer(content, np.uint8)
    return file.seal()


def report_content(handle: shm.Handle, pipe: Any) -> None:
    pipe.send(shm.attach(handle).tobytes())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_another_process_reads_the_bytes_however_it_was_started(method: str) -> None:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=report_content, args=(filled(), theirs))
    process.start()
    theirs.close()
    assert ours.recv() == CONTENT
    process.join()
    assert process.exitcode == 0


def test_a_process_that_shares_nothing_but_the_handle_reads_the_bytes() -> None:
    handle = filled()
    code = f"from shardlab.shm import *; print(attach({handle!r}).tobytes() == bytes(range(256)) * 64)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "True\n"


def test_the_bytes_have_no_name_in_any_file_system_and_one_in_the_map_of_the_process() -> None:
    handle = filled(name="named")
    attached = shm.attach(handle)
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line for line in maps if f" {handle.inode} " in line]
    assert len(mapped) == 1
    assert "/memfd:shardlab-named (deleted)" in mapped[0]
    assert not any(path.stat().st_ino == handle.inode for path in Path("/dev/shm").iterdir())
    assert attached.nbytes == len(CONTENT)


def test_a_write_stays_with_the_one_who_wrote() -> None:
    handle = filled()
    first, second = shm.attach(handle), shm.attach(handle)
    first[5000] = 99
    assert first[5000] == 99
    assert second.tobytes() == CONTENT
    assert shm.attach(handle).tobytes() == CONTENT


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDONLY])
def test_nobody_can_change_a_sealed_file(flags: int) -> None:
    handle = filled()
    fd = os.open(f"/proc/{handle.pid}/fd/{handle.fd}", flags)
    try:
        with pytest.raises(OSError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(OSError):
            mmap.mmap(fd, handle.nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(OSError):
            os.ftruncate(fd, 0)
        with pytest.raises(OSError):
            os.ftruncate(fd, 1 << 20)
    finally:
        os.close(fd)
    assert shm.attach(handle).tobytes() == CONTENT


def test_the_buffer_of_the_writer_is_gone_after_sealing() -> None:
    file = shm.MemoryFile("test", 10)
    file.seal()
    assert not hasattr(file, "buffer")


def test_a_file_of_no_bytes_is_a_file() -> None:
    attached = shm.attach(filled(b""))
    assert attached.shape == (0,)
    assert attached.dtype == np.uint8


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nonce": "00" * shm.NONCE_BYTES}, "its nonce differs"),
        ({"inode": 1}, "another file has its place"),
        ({"nbytes": 17}, "another file has its place"),
        ({"fd": 987_654, "socket": ""}, "cannot be opened"),
        ({"pid": 1 << 22, "socket": ""}, "cannot be opened"),
    ],
)
def test_a_handle_that_fits_no_memory_file_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RunFailed, match=said):
        shm.attach(dataclasses.replace(filled(), **changed))


def test_a_number_that_another_file_has_meanwhile_is_refused(tmp_path: Path) -> None:
    handle = filled()
    other = tmp_path / "other"
    other.write_bytes(bytes(len(CONTENT) + shm.NONCE_BYTES))
    fd = os.open(other, os.O_RDONLY)
    os.dup2(fd, handle.fd)
    os.close(fd)
    with pytest.raises(RunFailed, match="is not the shared copy that was announced"):
        shm.attach(handle)


def hold_one(pipe: Any) -> None:
    pipe.send(filled())
    signal.pause()


def test_what_a_dead_process_held_is_refused_with_the_reason_and_read_by_who_has_it() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    holder = context.Process(target=hold_one, args=(theirs,))
    holder.start()
    handle = ours.recv()
    attached = shm.attach(handle)
    holder.kill()
    holder.join()
    with pytest.raises(
        RunFailed, match=f"held by process {handle.pid} cannot be opened .*: that process ended"
    ):
        shm.attach(handle)
    assert attached.tobytes() == CONTENT


def test_more_than_the_machine_has_is_refused_with_the_figure() -> None:
    """Without being tried: the kernel would fill memory until it killed somebody."""
    with pytest.raises(
        RunFailed, match=r"needs 8589934592 MiB of memory, \d+ MiB are free: use --store mmap"
    ):
        shm.MemoryFile("test", 1 << 53)


def test_a_file_that_was_refused_leaves_no_descriptor() -> None:
    before = os.listdir("/dev/fd")
    with pytest.raises(RunFailed):
        shm.MemoryFile("test", 1 << 53)
    assert os.listdir("/dev/fd") == before


def test_descriptors_go_with_what_was_attached() -> None:
    handle = filled()
    before = len(os.listdir("/dev/fd"))
    attached = shm.attach(handle)
    for wrong in ({"nonce": "ff" * shm.NONCE_BYTES}, {"inode": 1}):
        with pytest.raises(RunFailed):
            shm.attach(dataclasses.replace(handle, **wrong))
    del attached
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
def test_a_file_that_is_attached_needs_no_more_page_faults() -> None:
    pages = 4096
    file = shm.MemoryFile("faults", pages * mmap.PAGESIZE)
    file.buffer[:] = 7
    attached = shm.attach(file.seal())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert int(attached[:: mmap.PAGESIZE].sum()) == 7 * pages
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 64

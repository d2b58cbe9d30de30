"""A process that does what it is told, a line at a time: the ranks and workers of these tests.

Each command is answered by one line. ``fork`` puts a child under it, which obeys through ``child``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from pathlib import Path

from shardlab.measure.hold import Holder, trim_on_signal

MIB = 1 << 20
kept: list[object] = []
children: list[tuple[int, int]] = []
holder: Holder | None = None


def private(mib: str) -> str:
    kept.append(block := mmap.mmap(-1, int(mib) * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    block.write(b"\1" * len(block))
    return "ok"


def read_all() -> str:
    return str(sum(len(bytes(block)) for block in kept if isinstance(block, mmap.mmap)))


def memfd(mib: str) -> str:
    fd = os.memfd_create("puppet")
    os.posix_fallocate(fd, 0, int(mib) * MIB)
    return str(fd)


def attach(path: str, how: str) -> str:
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    block = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    kept.append(block)
    if how == "read":
        bytes(block)
    if how == "write":
        block.write(b"\2" * size)
    os.close(fd)
    return "ok"


def retain(mib: str) -> str:
    """Leave free memory in the allocator that it cannot give back by itself, as the last block is in use."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(MIB // 16) for _ in range(int(mib) * 16)]
    for block in blocks:
        ctypes.memset(block, 1, MIB // 16)
    for block in blocks[:-1]:
        libc.free(block)
    return "ok"


def fork() -> str:
    down_read, down_write = os.pipe()
    up_read, up_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(down_read, 0)
        os.dup2(up_write, 1)
        os.closerange(3, 64)
        obey()
        os._exit(0)
    children.append((down_write, up_read))
    os.close(down_read)
    os.close(up_write)
    return str(pid)


def child(number: str, *command: str) -> str:
    send_child(number, *command)
    return child_answer(number)


def send_child(number: str, *command: str) -> str:
    os.write(children[int(number)][0], (" ".join(command) + "\n").encode())
    return "ok"


def child_answer(number: str) -> str:
    return os.read(children[int(number)][1], 4096).decode().strip()


def greet(run_dir: str, rank: str, timeout_s: str) -> str:
    global holder
    holder = Holder.connect(Path(run_dir), int(rank), float(timeout_s))
    return holder.reason or "ok"


def hold(epoch: str) -> str:
    assert holder is not None
    reply = holder.hold(int(epoch))
    if reply is None:
        return f"none: {holder.reason}"
    return f"go {reply.complete} {reply.memory.pss_anon_bytes if reply.memory else None} {reply.reason}"


def ended(epoch: str) -> str:
    assert holder is not None
    holder.ended(int(epoch))
    return "ok"


def catch() -> str:
    trim_on_signal()
    return "ok"


def spin(seconds: str) -> str:
    signal.setitimer(signal.ITIMER_VIRTUAL, float(seconds))
    signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    try:
        while True:
            pass
    except KeyboardInterrupt:
        return "ok"


def obey() -> None:
    buffer = b""
    while data := os.read(0, 4096):
        buffer += data
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            name, *words = line.decode().split()
            os.write(1, (globals()[name](*words) + "\n").encode())


if __name__ == "__main__":
    sys.exit(obey())

"""A filter that has the kernel refuse process_vm_readv, as sandboxes do."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

NUMBERS = {"x86_64": (0xC000003E, 310), "aarch64": (0xC00000B7, 270)}
"""Of each machine: its audit architecture, and the number of the call."""

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def refuse_process_vm_readv() -> None:
    """From now on, in this process and its children, the call fails with EPERM. Raises OSError where it cannot be."""
    architecture, number = NUMBERS[platform.machine()]
    program = b"".join(
        struct.pack("HBBI", *line)
        for line in (
            (_LOAD, 0, 0, 4),  # the architecture
            (_JUMP_IF_EQUAL, 0, 2, architecture),
            (_LOAD, 0, 0, 0),  # the number
            (_JUMP_IF_EQUAL, 1, 0, number),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        )
    )
    held = ctypes.create_string_buffer(program)
    filled = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_SET_NO_NEW_PRIVS, 1, 0), (_SET_SECCOMP, _FILTER, filled)):
        if libc.prctl(*arguments, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")

"""A descriptor handed to other processes of the same user over a local socket.

The address is an abstract one: no file, and gone with the process. Who asks has to name the nonce of the file.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading

PATIENCE_S = 5.0
SERVING_S = 1.0  # for one who connects to say what it wants: others wait meanwhile
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid of the process at the other end
_offered: dict[str, int] = {}  # descriptors by nonce
_listening: socket.socket | None = None
_address = ""


def offer(nonce: str, fd: int) -> str:
    """Hand ``fd`` to whoever knows its nonce, while this process lives: the address. Empty where there is no way."""
    global _listening, _address
    if sys.platform != "linux":
        return ""
    _offered[nonce] = fd
    if _listening is None:
        _address = f"shardlab-{os.urandom(16).hex()}"
        _listening = socket.socket(socket.AF_UNIX)
        _listening.bind("\0" + _address)
        _listening.listen(128)
        threading.Thread(target=_serve, args=(_listening,), name="shm-offer", daemon=True).start()
    return _address


def withdraw(nonce: str) -> None:
    """Hand it out no more."""
    _offered.pop(nonce, None)


def receive(address: str, nonce: str) -> int:
    """The descriptor, asked for at the address. Raises OSError where nobody answers, or another user does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect("\0" + address)
        if not _is_same_user(connection):
            raise PermissionError("another user answers")
        connection.sendall(bytes.fromhex(nonce))
        _, found, _, _ = socket.recv_fds(connection, 1, 1)
    if not found:
        raise FileNotFoundError("no such shared copy there")
    os.set_inheritable(found[0], False)
    return int(found[0])


def _serve(listening: socket.socket) -> None:
    while True:
        connection, _ = listening.accept()
        with connection:
            try:
                connection.settimeout(SERVING_S)
                fd = _offered.get(connection.recv(64).hex()) if _is_same_user(connection) else None
                if fd is not None:
                    socket.send_fds(connection, [b"!"], [fd])
            except OSError:
                continue  # who asked has gone


def _is_same_user(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())


def _forget() -> None:
    """A forked child has the socket but no thread that serves it: who asked there would wait in vain."""
    global _listening
    if _listening is not None:
        _listening.close()
    _listening = None
    _offered.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

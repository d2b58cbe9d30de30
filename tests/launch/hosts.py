"""Two hosts on one machine: each with a network, a name and a /dev/shm of its own, a cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("host-0", "host-1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
AVAILABLE = os.geteuid() == 0 and all(map(shutil.which, ("ip", "unshare", "nsenter")))


@dataclass(frozen=True)
class Host:
    """Its namespaces live as long as ``holder`` does. ``tmp`` is for its temporary files, ``shm`` its /dev/shm."""

    name: str
    holder: subprocess.Popen[bytes]
    tmp: Path

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command; it becomes that command, in the same process."""
        spaces = f"/proc/{self.holder.pid}/ns"
        return ("nsenter", f"--mount={spaces}/mnt", f"--uts={spaces}/uts", f"--net={spaces}/net", "--")

    @property
    def shm(self) -> Path:
        """Where its /dev/shm can be seen from here."""
        return Path(f"/proc/{self.holder.pid}/root/dev/shm")

    @property
    def left_behind(self) -> list[str]:
        """Files in its shared memory and its temporary folder."""
        return sorted(path.name for folder in (self.shm, self.tmp) for path in folder.iterdir())


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Both hosts, which find each other by name. Skips the test where namespaces cannot be made."""
    if not AVAILABLE:
        pytest.skip("two hosts on one machine need root, ip, unshare and nsenter")
    names = folder / "hosts"
    lines = [f"{address} {name}\n" for name, address in zip(NAMES, ADDRESSES, strict=True)]
    names.write_text("127.0.0.1 localhost\n" + "".join(lines))
    first, second = (_host(name, names) for name in NAMES)
    try:
        _connect(first, second)
        yield first, second
    finally:
        for host in (first, second):
            host.holder.communicate()
            shutil.rmtree(host.tmp, ignore_errors=True)


def _host(name: str, names: Path) -> Host:
    tmp = Path(tempfile.mkdtemp(prefix=f"{name}-"))  # short, as the address of a socket has 108 bytes
    script = (
        f"hostname {name} && ip link set lo up && mount -t tmpfs tmpfs /dev/shm "
        f"&& mount --bind {names} /etc/hosts && echo made && exec cat"
    )
    holder = subprocess.Popen(
        ["unshare", "--mount", "--uts", "--net", "sh", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    if holder.stdout.readline() != b"made\n":
        holder.communicate()
        tmp.rmdir()
        pytest.skip("namespaces cannot be made here")
    return Host(name, holder, tmp)


def _connect(first: Host, second: Host) -> None:
    """A cable; it goes when the hosts do, as it lies in their networks alone."""
    cable = ("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns")
    _say((*first.prefix, *cable, str(second.holder.pid)))
    for host, address in zip((first, second), ADDRESSES, strict=True):
        _say((*host.prefix, "ip", "address", "add", f"{address}/24", "dev", "cable"))
        _say((*host.prefix, "ip", "link", "set", "cable", "up"))


def _say(command: tuple[str, ...]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"

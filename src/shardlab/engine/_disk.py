"""A checkpoint on disk: a folder that is there as a whole or not at all, and files that are what was written.

It is written under another name::

    .partial-step-00000123 -> every file on disk -> step-00000123 -> folder on disk -> older ones removed

Where there is one of that step, it is ``.replaced-step-00000123`` between the two renames, and found under that
name should the process be killed right there. So at every moment what has a name of a checkpoint is whole.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from shardlab.errors import RunFailed, UsageError

STATE = "state.json"
_NAME = re.compile(r"(?:\.replaced-)?step-(\d{8,19})")
_PARTIAL, _REPLACED = ".partial-", ".replaced-"


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and checksum of a file."""

    bytes: int
    blake2b: str


def checksum(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def write(target: Path, files: dict[str, bytes], keep: int) -> None:
    folder = target.parent
    part = folder / f"{_PARTIAL}{target.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        part.mkdir()
        for name, raw in files.items():
            _put(part / name, raw)
        _to_disk(part)
        if target.exists():
            target.rename(folder / f"{_REPLACED}{target.name}")
        part.rename(target)
        _to_disk(folder)
        _sweep(folder)
        _remove_older(target, keep)
    except OSError as error:
        with suppress(OSError):
            _sweep(folder)  # a full disk needs the room
        raise RunFailed(
            f"the checkpoint {target} could not be written: {error.strerror or error}; earlier ones are kept. "
            "Cure: make room there, or save to another folder"
        ) from error


def _put(path: Path, raw: bytes) -> None:
    with path.open("xb", buffering=0) as file:
        left = memoryview(raw)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())  # before the rename: a name must not outlive the content it promises


def _to_disk(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sweep(folder: Path) -> None:
    """Remove what a save that was killed left there, and finish what it had begun."""
    for old in folder.glob(f"{_REPLACED}*"):
        target = folder / old.name.removeprefix(_REPLACED)
        if target.exists():
            _remove(old)
        else:
            old.rename(target)
    for part in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(part)


def _remove(path: Path) -> None:
    """At once for all who look for checkpoints: a half of one must never be found."""
    doomed = path.with_name(f"{_PARTIAL}removed-{path.name}")
    path.rename(doomed)
    shutil.rmtree(doomed)


def _remove_older(target: Path, keep: int) -> None:
    """Those of more steps stay: a run that went on from an earlier checkpoint did not make them."""
    found = finished(target.parent)
    own = int(target.name.removeprefix("step-"))
    for step in sorted(step for step in found if step <= own)[:-keep]:
        _remove(found[step])


def finished(folder: Path) -> dict[int, Path]:
    """Whole checkpoints by their global step."""
    found: dict[int, Path] = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.iterdir()):  # one being replaced comes first, and counts where it is alone
            name = _NAME.fullmatch(path.name)
            if name and (path / STATE).is_file():
                found[int(name[1])] = path
    return found


def content(path: Path, name: str, mark: Mark | None = None) -> bytes:
    """A file of a checkpoint. A link is not followed: it may lead out of the folder."""
    file = path / name
    if not path.is_dir():
        rule, cure = "a checkpoint must be a folder that was saved", "name one that is called step-N"
        raise UsageError(rule, str(path), cure=cure)
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if mark is not None and status.st_size != mark.bytes:
                raise OSError(errno.EIO, f"{status.st_size} bytes, but {mark.bytes} were written")
            raw = opened.read()
    except OSError as error:
        raise damaged(file, error.strerror or str(error)) from None
    if mark is not None and checksum(raw) != mark.blake2b:
        raise damaged(file, "other bytes than were written")
    return raw


def damaged(file: Path, why: str) -> RunFailed:
    return RunFailed(
        f"{file} is damaged or not of this checkpoint: {why}. Cure: remove {file.parent} and go on from an "
        "earlier checkpoint"
    )

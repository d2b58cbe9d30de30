"""Save a training run and go on from there, on as many ranks or on others. Nothing is pickled.

A checkpoint is a folder ``step-00000123``: safetensors files for the tensors of model, optimiser and generators,
and ``state.json`` for all else, with the size and checksum of each file. How it comes to lie on the disk as a whole
or not at all is in ``_disk``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import nn
from torch.optim import Optimizer

from shardlab.collective import broadcast_bytes, on_all
from shardlab.engine import _disk, _flatten, _generators
from shardlab.engine._disk import STATE
from shardlab.engine._flatten import Change, OptimizerFacts, Tensors
from shardlab.errors import UsageError
from shardlab.index.permutation import key_of

VERSION = 1
TENSORS = ("model.safetensors", "optimizer.safetensors", "random.safetensors")

_BROKEN = (
    msgspec.DecodeError, SafetensorError, UnicodeDecodeError, RecursionError, ValueError, KeyError, TypeError,
    RuntimeError, OverflowError,
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a training run was when it was saved.

    ``step`` counts the steps of the epoch that were done, ``global_step`` those since the very start, both per
    rank. ``loader`` is the data path's own state, a few integers, and may be empty.
    """

    run_id: str
    epoch: int
    step: int
    global_step: int
    world_size: int
    batch_size: int
    sampler: str
    seed: int
    loader: dict[str, int]
    samples: int | None = None
    shuffle: bool = True
    tail: str = "pad"


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``state.json``. Files are marked in the order of TENSORS: it names none."""

    version: int
    place: Place
    marks: tuple[_disk.Mark, _disk.Mark, _disk.Mark]
    tied: dict[str, str]
    optimizer: OptimizerFacts
    schedule: Any


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state with the checksum of its own text."""

    blake2b: str
    state: msgspec.Raw


def save(
    folder: Path, place: Place, model: nn.Module, optimizer: Optimizer, schedule: Any, *, keep: int = 2
) -> Path:
    """Save a run between two steps; returns the checkpoint, ``folder/step-N`` of the global step N.

    Every rank calls it, rank 0 writes: the model that is not wrapped, the optimiser, the schedule or None, and
    the generators of all ranks. Of the checkpoints up to this one, the last ``keep`` stay. One run at a time may
    save to a folder.

    Raises UsageError for what cannot be saved without pickling, naming it; RunFailed, on all ranks, where the
    disk does not take it, and then earlier checkpoints are as they were.
    """
    rank, world_size = _here()
    _check(place, world_size, keep)
    failed = f"rank {rank} has generators that cannot be saved"
    streams = on_all(world_size, lambda: bytes_of(_generators.random_parts()), failed)
    target = folder / f"step-{place.global_step:08d}"

    def lead() -> bytes:
        if rank == 0:
            _disk.write(target, _files(place, model, optimizer, schedule, streams), keep)
        return b""

    on_all(world_size, lead, "the checkpoint was not saved")
    return target


def latest(folder: Path) -> Path:
    """The checkpoint of the most steps in ``folder``, of those that were finished; ``folder`` where it is one.

    Raises UsageError where there is none.
    """
    if (folder / STATE).is_file():
        return folder
    found = _disk.finished(folder)
    if not found:
        raise UsageError(
            "a run can go on from a folder with a finished checkpoint in it", str(folder),
            cure="name the folder that a run was saved to, or start the run anew",
        )  # fmt: skip
    return found[max(found)]


def read_place(path: Path) -> Place:
    """Where the run was that was saved to ``path``. Raises as :func:`load` does, on what ``state.json`` says."""
    with _readable(path):
        return _state(_disk.content(path, STATE)).place


def load(path: Path, model: nn.Module, optimizer: Optimizer, schedule: Any) -> Place:
    """Put a saved run into a model, optimiser, schedule and this process's generators; returns its place.

    Every rank calls it; rank 0 alone reads ``path``. Rank r goes on with the generators of the old rank r; where
    there was none, they are seeded with a hash of seed, epoch, step and rank.

    Raises, on all ranks and before anything is changed, RunFailed where the checkpoint is damaged, naming the
    file, and UsageError where it is of another model, optimiser or schedule, naming the first difference.
    """
    rank, world_size = _here()
    files: list[bytes] = []
    changes: list[Change] = []

    def lead() -> bytes:
        if rank == 0:
            files.extend(_verified(path))
        return b""

    def prepare() -> bytes:
        with _readable(path):
            changes.extend(_changes(files, rank, model, optimizer, schedule))
        return b""

    on_all(world_size, lead, "the checkpoint was not read")
    if world_size > 1:
        files = [broadcast_bytes(files[place] if rank == 0 else b"") for place in range(1 + len(TENSORS))]
    on_all(world_size, prepare, f"rank {rank} cannot take the checkpoint")
    for change in changes:
        change()
    return _state(files[0]).place


def _here() -> tuple[int, int]:
    """Rank and world size of the process group; a process without one is alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _check(place: Place, world_size: int, keep: int) -> None:
    if keep < 1:
        raise UsageError("keep must be at least 1 checkpoint", keep)
    if place.world_size != world_size:
        rule = "world_size of a place must be that of the process group"
        raise UsageError(rule, place.world_size, [world_size])
    if not 0 <= place.global_step < 1 << 62:
        raise UsageError("global_step of a place must be at least 0, and below 2^62", place.global_step)


def _files(
    place: Place, model: nn.Module, optimizer: Optimizer, schedule: Any, streams: list[bytes]
) -> dict[str, bytes]:
    """The content of each file, by name."""
    weights, tied = _flatten.model_parts(model)
    states, facts = _flatten.optimizer_parts(optimizer)
    drawn: Tensors = {}
    for rank, raw in enumerate(streams):
        drawn |= {f"{rank}.{name}": tensor for name, tensor in tensors_of(raw).items()}
    files = dict(zip(TENSORS, map(bytes_of, (weights, states, drawn)), strict=True))
    marks = [_disk.Mark(len(raw), _disk.checksum(raw)) for raw in files.values()]
    plan = _flatten.schedule_parts(schedule)
    state = _State(VERSION, place, (marks[0], marks[1], marks[2]), tied, facts, plan)
    try:
        text = msgspec.json.format(msgspec.json.encode(state), indent=1)
        msgspec.json.decode(text, type=_State)  # what cannot be read must not be written
    except (TypeError, ValueError, msgspec.DecodeError) as error:
        raise UsageError("a place must hold text and integers, as it says", str(error)) from None
    sealed = _Sealed(_disk.checksum(text), msgspec.Raw(text))
    return {**files, STATE: msgspec.json.encode(sealed) + b"\n"}


def _verified(path: Path) -> list[bytes]:
    """The content of ``state.json`` and of all tensor files, after their checksums were compared."""
    with _readable(path):
        files = [_disk.content(path, STATE)]
        marks = _state(files[0]).marks
        return files + [_disk.content(path, name, mark) for name, mark in zip(TENSORS, marks, strict=True)]


def _state(raw: bytes) -> _State:
    """Raises one of ``_BROKEN`` for what :func:`_files` did not write."""
    sealed = msgspec.json.decode(raw, type=_Sealed)
    if _disk.checksum(bytes(sealed.state)) != sealed.blake2b:
        raise ValueError("other bytes than were written")
    version = msgspec.json.decode(sealed.state, type=dict[str, Any]).get("version")
    if version != VERSION:
        raise ValueError(f"version {version!r}, where this program reads {VERSION}")
    return msgspec.json.decode(sealed.state, type=_State)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What does not fit although its checksum does was not written by :func:`save`, or not by this version."""
    try:
        yield
    except _BROKEN as error:
        raise _disk.damaged(path / STATE, f"{type(error).__name__}: {error}") from error


def _changes(
    files: list[bytes], rank: int, model: nn.Module, optimizer: Optimizer, schedule: Any
) -> list[Change]:
    state = _state(files[0])
    weights, states, drawn = map(tensors_of, files[1:])
    place = state.place
    key = key_of(key_of(key_of(place.seed, place.epoch), place.step), rank)
    own = f"{rank}."
    mine = {name.removeprefix(own): each for name, each in drawn.items() if name.startswith(own)}
    if rank < place.world_size and not mine:
        raise ValueError(f"no generators of rank {rank}")
    return [
        _flatten.model_change(model, weights, state.tied),
        _flatten.optimizer_change(optimizer, states, state.optimizer),
        _flatten.schedule_change(schedule, state.schedule),
        _generators.random_change(mine, key),
    ]

"""path/to/file.npy, a NumPy array whose first axis counts the samples."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardlab.dataset._arrays import ArrayDataset
from shardlab.dataset._facts import DatasetFacts
from shardlab.dataset._sample import describe_sample
from shardlab.dataset._spec import DatasetSpec
from shardlab.errors import UsageError

SUFFIX = ".npy"
MAPPED = True


def open(args: str, spec: DatasetSpec) -> ArrayDataset:
    """The array, read into this process's memory."""
    del spec
    _checked(args)
    return ArrayDataset(torch.from_numpy(np.load(args, allow_pickle=False)))


def open_mapped(args: str, spec: DatasetSpec) -> MappedArray:
    """The file, mapped: a page comes when it is read, a write changes this process's copy of it alone."""
    del spec
    return MappedArray(args)


def facts(args: str, spec: DatasetSpec) -> DatasetFacts:
    """From the file's header and its first sample."""
    del spec
    array = _checked(args)
    first = array[0] if len(array) else np.zeros(array.shape[1:], array.dtype)
    sample = describe_sample(torch.from_numpy(np.array(first)))
    return DatasetFacts(len(array), array.nbytes, sample, files=(str(Path(args).resolve()),))


class MappedArray(ArrayDataset):
    """Rows of a mapped ``.npy`` file; goes to worker processes by path."""

    def __init__(self, path: str) -> None:
        self.path = str(Path(path).resolve())
        super().__init__(torch.from_numpy(_checked(self.path)))

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedArray, (self.path,)


def _checked(path: str) -> NDArray[Any]:
    """The array as a private, writable map, its data unread. Raises UsageError for what is no dataset."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, zipfile.BadZipFile) as error:
        raise UsageError(
            "--dataset FILE.npy must be a whole file of numbers, as np.save writes it",
            path,
            cure=f"write it anew (NumPy says: {error})",
        ) from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise UsageError("--dataset FILE.npy must hold one array", path, cure="save one of this .npz")
    if array.ndim == 0:
        raise UsageError("--dataset FILE.npy must have an axis of samples", "an array of no axes")
    if not array.flags.c_contiguous:
        raise UsageError(
            "--dataset FILE.npy must have its samples one after another",
            "an array in Fortran order",
            cure="save np.ascontiguousarray(array)",
        )
    try:
        torch.from_numpy(np.empty(0, array.dtype))
    except (TypeError, ValueError):
        raise UsageError(
            "--dataset FILE.npy must have a dtype that torch knows, in this byte order",
            str(array.dtype),
            ["uint8", "int64", "float32", "..."],
            "convert it with array.astype",
        ) from None
    return array

"""The torchvision datasets, made as its tutorials make them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchvision import transforms

from shardlab.dataset._spec import DatasetSpec
from shardlab.errors import RunFailed, UsageError
from shardlab.filelock import locked

DEFAULT_DIR = "data"


def open_split(dataset_class: Any, args: str, spec: DatasetSpec, mean: float, std: float) -> Any:
    """The split that ``args`` names, ``train`` or ``test``: ``(float32 tensor of shape (1, 28, 28), class)``.

    Lies in ``--data-dir``, else in $SHARDLAB_DATA, else in ./data, and is downloaded there where it is
    missing. Raises RunFailed where it cannot be.
    """
    if args not in ("", "train", "test"):
        raise UsageError(
            "--dataset mnist and fashion-mnist take the name of a split", args, ["train", "test"],
            "give the folder by --data-dir",
        )  # fmt: skip
    folder = Path(spec.data_dir or os.environ.get("SHARDLAB_DATA") or DEFAULT_DIR)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((mean,), (std,))])
    try:
        return dataset_class(folder, train=args != "test", transform=transform)
    except RuntimeError:  # torchvision's word for files that are not there
        return _downloaded(dataset_class, folder, transform, is_train=args != "test")


def _downloaded(dataset_class: Any, folder: Path, transform: Any, *, is_train: bool) -> Any:
    lock = folder / f".{dataset_class.__name__}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(lock):  # the ranks of a job all come here at once
            try:
                return dataset_class(folder, train=is_train, transform=transform, download=True)
            finally:
                lock.unlink()
    except (RuntimeError, OSError) as error:
        _remove_empty(folder / dataset_class.__name__ / "raw", folder / dataset_class.__name__, folder)
        raise RunFailed(
            f"{dataset_class.__name__} is neither in {folder.resolve()} nor can it be downloaded there "
            f"({error}). "
            f"Cure: give the folder that holds {dataset_class.__name__}/raw by --data-dir or SHARDLAB_DATA"
        ) from None


def _remove_empty(*folders: Path) -> None:
    """What was made for a download that did not come, innermost first."""
    for folder in folders:
        with suppress(OSError):  # not there, or not empty
            folder.rmdir()

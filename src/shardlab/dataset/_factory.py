"""The user's own dataset: what ``package.module:factory`` or ``file.py:factory`` returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from shardlab.dataset._arrays import ArrayDataset, ListDataset
from shardlab.dataset._spec import DatasetSpec
from shardlab.errors import UsageError
from shardlab.plugins import load_reference

FLAG = "--dataset"


def open(args: str, spec: DatasetSpec) -> Any:
    """Call the factory. What it raises is its own and is left as it is."""
    del spec
    factory = load_reference(args, FLAG)
    _refuse_arguments(factory, args)
    return as_dataset(factory(), args)


def _refuse_arguments(factory: Callable[..., Any], name: str) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # some built-in callables have none; calling will tell
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(f"{FLAG} factory must need no arguments", name, cure=f"{error}") from None


def as_dataset(result: Any, name: str) -> Any:
    """A factory's result as a dataset; its objects stay where and what they are.

    A dataset (``__len__`` and ``__getitem__``) is returned as it is, lists and arrays are sequences of
    samples, anything else that can be iterated again and again is an IterableDataset. Raises UsageError for
    all else.
    """
    if isinstance(result, IterableDataset):
        return result
    if isinstance(result, torch.Tensor | np.ndarray) and result.ndim > 0:
        return ArrayDataset(result) if isinstance(result, torch.Tensor) else ListDataset(result)
    if isinstance(result, list | tuple):
        _refuse_columns(result, name)
        return ListDataset(result)
    if isinstance(result, str | bytes | dict | torch.Tensor | np.ndarray):
        raise _no_dataset(result, name)
    if hasattr(result, "__len__") and hasattr(result, "__getitem__"):
        return result
    if hasattr(result, "__iter__"):
        if isinstance(result, Iterator):
            raise UsageError(
                f"{FLAG} {name} must return an iterable that each epoch can read again",
                _type_name(result),
                cure="return an object whose __iter__ starts anew",
            )
        return Stream(result)
    raise _no_dataset(result, name)


class Stream(IterableDataset[Any]):
    """An iterable that is no torch dataset, as one."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def set_epoch(self, epoch: int) -> None:
        """Handed on where the iterable has an epoch."""
        if hasattr(self.items, "set_epoch"):
            self.items.set_epoch(epoch)


def _refuse_columns(result: list[Any] | tuple[Any, ...], name: str) -> None:
    """``return images, labels`` would be a dataset of two samples, which nobody means."""
    arrays = [item for item in result if isinstance(item, torch.Tensor | np.ndarray)]
    if isinstance(result, tuple) and result and len(arrays) == len(result):
        raise UsageError(
            f"{FLAG} {name} must return a dataset",
            f"a tuple of {len(result)} arrays",
            cure="return torch.utils.data.TensorDataset(*arrays), or a list if these are the samples",
        )


def _no_dataset(result: Any, name: str) -> UsageError:
    choices = ["a dataset with __len__ and __getitem__", "an IterableDataset", "a list", "an array"]
    return UsageError(f"{FLAG} {name} must return a dataset", _type_name(result), choices)


def _type_name(result: Any) -> str:
    return "None" if result is None else type(result).__qualname__

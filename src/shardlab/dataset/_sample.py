"""A sample's structure as a small tree that survives JSON, and samples made from such a tree."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.dataset._facts import Tree

_BYTE_DTYPES = ("uint8", "int8")
_LARGEST = (1 << 63) - 1


def describe_sample(sample: Any) -> Tree:
    """The structure of a sample, with no data in it but the size of its integers.

    ::

        (image, 7)  ->  {"kind": "tuple", "items": [
                            {"kind": "tensor", "dtype": "uint8", "shape": [3, 224, 224]},
                            {"kind": "int", "high": 7}]}

    Kinds: ``tensor`` and ``array`` (numpy, also its scalars) with dtype and shape; ``int``, ``float``,
    ``bool``, ``none``; ``str`` and ``bytes`` with their length; ``tuple``, ``list`` and ``dict`` with items
    (and keys); ``object`` with its type and bytes. ``high`` is the largest integer of the sample, so that a
    stand-in's labels and tokens stay within what a model has classes and embeddings for. Many bytes at once
    are pixels and have none; a single one may be a label.
    """
    import torch

    if isinstance(sample, torch.Tensor):
        return _described_array("tensor", str(sample.dtype).removeprefix("torch."), sample.shape, sample)
    if isinstance(sample, np.ndarray | np.generic) and sample.dtype.kind in "biufc":
        return _described_array("array", sample.dtype.name, sample.shape, sample)
    if sample is None:
        return {"kind": "none"}
    if isinstance(sample, bool):
        return {"kind": "bool"}
    if isinstance(sample, int):
        return {"kind": "int", "high": min(max(int(sample), 0), _LARGEST)}
    if isinstance(sample, float):
        return {"kind": "float"}
    if isinstance(sample, str | bytes | bytearray):
        return {"kind": "str" if isinstance(sample, str) else "bytes", "length": len(sample)}
    return _described_container(sample)


def _described_container(sample: Any) -> Tree:
    if isinstance(sample, dict):
        keys = [key if isinstance(key, str | int | float) else str(key) for key in sample]
        return {"kind": "dict", "keys": keys, "items": [describe_sample(item) for item in sample.values()]}
    if isinstance(sample, tuple | list):
        kind = "tuple" if isinstance(sample, tuple) else "list"
        return {"kind": kind, "items": [describe_sample(item) for item in sample]}
    name = f"{type(sample).__module__}.{type(sample).__qualname__}"
    return {"kind": "object", "type": name, "bytes": _object_bytes(sample)}


def _described_array(kind: str, dtype: str, shape: tuple[int, ...], values: Any) -> Tree:
    tree: Tree = {"kind": kind, "dtype": dtype, "shape": [int(n) for n in shape]}
    if _is_single_integer(tree) or _is_wide_integer(dtype):
        # torch finds no maximum of unsigned 16 to 64 bits, numpy does
        array = np.asarray(values.to_dense().detach().cpu() if kind == "tensor" else values)
        tree["high"] = max(int(array.max()), 0) if array.size else 0
    return tree


def _is_wide_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint")) and dtype not in _BYTE_DTYPES


def _is_single_integer(tree: Tree) -> bool:
    return tree["dtype"].startswith(("int", "uint")) and math.prod(tree["shape"]) == 1


def _object_bytes(sample: Any) -> int:
    """Bytes of an object of unknown type; an image's pixels lie where sys.getsizeof does not see them."""
    if callable(getattr(sample, "tobytes", None)):
        return len(sample.tobytes())
    return sys.getsizeof(sample)


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a torch dtype given by name."""
    import torch

    return int(getattr(torch, dtype).itemsize)


def sample_bytes(tree: Tree) -> int:
    """Payload of a sample in bytes: elements of arrays, 8 for a number, 1 for a bool, the length of a text.

    >>> sample_bytes({"kind": "tuple", "items": [{"kind": "str", "length": 3}, {"kind": "int"}]})
    11
    """
    if "items" in tree:
        return sum(sample_bytes(item) for item in tree["items"])
    if "dtype" in tree:
        size = item_bytes(tree["dtype"]) if tree["kind"] == "tensor" else np.dtype(tree["dtype"]).itemsize
        return int(size * np.prod(tree["shape"], dtype=object))
    fixed = {"none": 0, "bool": 1, "int": 8, "float": 8}
    if tree["kind"] in fixed:
        return fixed[tree["kind"]]
    return int(tree["bytes"] if tree["kind"] == "object" else tree["length"])


def blank_sample(tree: Tree) -> Any:
    """A sample of this structure that holds nothing: zeros and spaces."""
    return make_sample(tree, None)


def make_sample(tree: Tree, rng: np.random.Generator | None) -> Any:
    """A sample of this structure: random content from ``rng``, or blank. Objects become bytes.

    An integer by itself is the one that was seen, 0 if that was negative: any other may be no class of a model.
    """
    if "items" not in tree:
        return _MAKERS[tree["kind"]](tree, rng)
    items = [make_sample(item, rng) for item in tree["items"]]
    if tree["kind"] == "dict":
        return dict(zip(tree["keys"], items, strict=True))
    return tuple(items) if tree["kind"] == "tuple" else items


def make_tensor(tree: Tree, rng: np.random.Generator | None, rows: tuple[int, ...] = ()) -> Any:
    """A tensor of shape (``*rows``, ``*tree["shape"]``) and the tree's dtype."""
    import torch

    return torch.from_numpy(_values(tree, rng, rows)).to(getattr(torch, tree["dtype"]))


def _values(tree: Tree, rng: np.random.Generator | None, rows: tuple[int, ...] = ()) -> NDArray[Any]:
    shape = (*rows, *tree["shape"])
    dtype = tree["dtype"]
    if rng is None:
        return np.zeros(shape, np.uint8)
    if "high" in tree and _is_single_integer(tree):
        return np.full(shape, tree["high"], np.uint64).view(np.int64)
    if dtype in _BYTE_DTYPES:
        return rng.integers(0, 256, shape, np.uint8)
    if dtype == "bool":
        return rng.integers(0, 2, shape, np.uint8)
    if _is_wide_integer(dtype):
        return rng.integers(0, tree.get("high", 0), shape, np.uint64, endpoint=True).view(np.int64)
    return rng.random(shape, np.float32)


def _text(length: int, rng: np.random.Generator | None) -> bytes:
    return b" " * length if rng is None else rng.integers(97, 123, length, np.uint8).tobytes()


_MAKERS: dict[str, Callable[[Tree, np.random.Generator | None], Any]] = {
    "tensor": make_tensor,
    # the empty index turns a 0-d array into the numpy scalar that it stands for
    "array": lambda tree, rng: _values(tree, rng).astype(tree["dtype"])[()],
    "int": lambda tree, rng: 0 if rng is None else int(tree.get("high", 0)),
    "float": lambda _, rng: 0.0 if rng is None else float(rng.random()),
    "bool": lambda _, rng: rng is not None and bool(rng.integers(0, 2)),
    "none": lambda *_: None,
    "str": lambda tree, rng: _text(tree["length"], rng).decode("ascii"),
    "bytes": lambda tree, rng: _text(tree["length"], rng),
    "object": lambda tree, rng: _text(tree["bytes"], rng),
}

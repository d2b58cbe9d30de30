"""Small datasets with the samples of a large one: what a control run reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from shardlab.dataset._arrays import ArrayDataset, ListDataset
from shardlab.dataset._factory import Stream
from shardlab.dataset._facts import DatasetFacts, Tree
from shardlab.dataset._sample import make_sample, make_tensor


def stand_in(facts: DatasetFacts, n: int, seed: int = 0) -> Dataset[Any]:
    """``n`` samples of the structure in ``facts``, of random content that is really there.

    An ArrayDataset where a sample is a tensor, or a tuple or dict of tensors; otherwise a list of Python
    objects made one by one. An IterableDataset of them where the dataset is one. Needs nothing of the user's
    own code.
    """
    rng = np.random.default_rng(seed)
    dataset = _rows(facts.sample, n, rng) or ListDataset([make_sample(facts.sample, rng) for _ in range(n)])
    return Stream(dataset) if facts.iterable else dataset


def _rows(tree: Tree, n: int, rng: np.random.Generator) -> ArrayDataset | None:
    if tree["kind"] == "tensor":
        return ArrayDataset(make_tensor(tree, rng, (n,)))
    items = tree.get("items")
    if tree["kind"] not in ("tuple", "dict") or not items or any(item["kind"] != "tensor" for item in items):
        return None
    leaves = [make_tensor(item, rng, (n,)) for item in items]
    if tree["kind"] == "dict":
        return ArrayDataset(dict(zip(tree["keys"], leaves, strict=True)))
    return ArrayDataset(tuple(leaves))

"""records:N, a list of small dicts as an annotation file loads; records:200k is the default.

A record::

    {"image_id": 17, "file_name": "000000000017.jpg", "width": 640, "height": 427, "category": "bicycle",
     "bbox": [12.5, 80.25, 100.0, 31.75], "score": 0.93}

All its values are objects of their own, as ``json.loads`` gives them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from shardlab.dataset._arrays import ListDataset
from shardlab.dataset._spec import DatasetSpec
from shardlab.dataset._units import parse_count

DEFAULT = "200k"
CHUNK = 1000
CATEGORIES = ("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "kite")


def open(args: str, spec: DatasetSpec) -> ListDataset:
    """The records, built in this process. Raises UsageError where ``args`` is no number."""
    count = parse_count(args or DEFAULT, "--dataset records:N must give the number of records")
    items: list[dict[str, Any]] = []
    for start in range(0, count, CHUNK):
        text = "[" + ",".join(_texts(range(start, min(start + CHUNK, count)), spec.seed)) + "]"
        items += json.loads(text)
    return ListDataset(items)


def _texts(indices: range, seed: int) -> Iterator[str]:
    """A chunk of records as JSON; values depend on the seed and the index alone."""
    rng = np.random.default_rng([seed, indices.start])
    sizes = rng.integers(300, 1000, (CHUNK, 2)).tolist()  # (record, width and height)
    boxes = (rng.integers(0, 4000, (CHUNK, 4)) / 4).tolist()  # (record, x y width height)
    categories = rng.integers(0, len(CATEGORIES), CHUNK).tolist()
    scores = rng.random(CHUNK).round(4).tolist()
    for row, index in enumerate(indices):
        width, height = sizes[row]
        yield (
            f'{{"image_id":{index},"file_name":"{index:012d}.jpg","width":{width},"height":{height},'
            f'"category":"{CATEGORIES[categories[row]]}","bbox":{boxes[row]},"score":{scores[row]}}}'
        )

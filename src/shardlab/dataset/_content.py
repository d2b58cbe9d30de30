"""For datasets whose content says which sample it is: what it should say, and what a batch does say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.dataset._spec import DatasetSpec, arguments_of, kind_of

Words = NDArray[np.uint64]


def expected_words(spec: DatasetSpec) -> Callable[[NDArray[np.int64]], Words] | None:
    """From indices, shape (m,), to the first 8 bytes of their content; None where content says nothing."""
    if kind_of(spec) != "synthetic":
        return None
    from shardlab.dataset import synthetic

    layout = synthetic.parse(arguments_of(spec), spec.seed)
    return lambda indices: synthetic.first_words(layout, indices)


def words_of_batch(spec: DatasetSpec) -> Callable[[Any], Words] | None:
    """From a delivered batch to the first 8 bytes of each of its samples; None as above."""
    if kind_of(spec) != "synthetic":
        return None
    from shardlab.dataset import synthetic

    return synthetic.words_of_batch

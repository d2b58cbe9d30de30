"""Which tensors of a process are batches: those that live, are no part of the dataset, and are no larger."""

from __future__ import annotations

import numpy as np
import torch

from shardlab.dataset._arrays import ArrayDataset
from shardlab.engine.in_hand import batches_in_hand


def test_a_batch_is_found_with_all_of_its_storage_and_the_dataset_is_not():
    rows = torch.from_numpy(np.random.default_rng(0).random((64, 1024), dtype=np.float32))
    dataset = ArrayDataset((rows, torch.arange(64)))
    batch = torch.stack([dataset[index][0] for index in range(8)])
    part, view, large = batch[2:4], rows[5:6], torch.zeros(1 << 20)
    found = batches_in_hand(dataset, batch.nbytes)
    start = batch.data_ptr()
    assert (start, start + batch.nbytes) in found
    assert not any(first < rows.data_ptr() + rows.nbytes and rows.data_ptr() < last for first, last in found)
    assert all(last - first <= batch.nbytes for first, last in found)
    del batch
    assert (start, start + 8 * 4096) in batches_in_hand(dataset, 8 * 4096)  # part of it is in use
    del part
    assert (start, start + 8 * 4096) not in batches_in_hand(dataset, 8 * 4096)
    assert view.nbytes and large.nbytes

"""Batches that workers made, in memory that is mapped and in memory that is not."""

from __future__ import annotations

import mmap
import os
import sys

import pytest

from shardlab.watching.batches import on_their_way

MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm and /proc are Linux's")
def test_a_batch_counts_once_while_it_is_an_open_file_or_mapped_and_if_a_worker_made_it():
    own = os.getpid()
    before = on_their_way([own], {own})
    path = f"/dev/shm/torch_{own}_batch"
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    os.unlink(path)
    os.write(file, bytes(3 * MIB))
    again = os.dup(file)
    assert on_their_way([own], {own}) - before == 3 * MIB
    assert on_their_way([own], set()) == 0
    with mmap.mmap(file, 3 * MIB):
        assert on_their_way([own, own], {own}) - before == 3 * MIB
        os.close(file)
        os.close(again)
        assert on_their_way([own], {own}) - before == 3 * MIB
    assert on_their_way([own], {own}) == before

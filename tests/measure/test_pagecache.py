from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from shardlab.measure import pagecache

MIB = 1 << 20
PAGE = mmap.PAGESIZE


@pytest.fixture
def disk_file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(8 * MIB + 5))
    pagecache.evict(path)
    if pagecache.resident_bytes(path):
        pytest.skip("this file system keeps its pages")
    return path


def test_a_warmed_file_is_resident_to_the_byte(disk_file: Path):
    assert pagecache.warm(disk_file) == 8 * MIB + 5
    assert pagecache.resident_bytes(disk_file) == 8 * MIB + 5


def test_counting_reads_no_page(disk_file: Path):
    assert [pagecache.resident_bytes(disk_file) for _ in range(3)] == [0, 0, 0]


def test_pages_read_by_hand_are_counted(disk_file: Path):
    with disk_file.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
        for page in (0, 7, 100):
            os.pread(file.fileno(), 1, page * PAGE)
    assert pagecache.resident_bytes(disk_file) == 3 * PAGE


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1])
def test_sizes_that_do_not_fill_pages(tmp_path: Path, size: int):
    path = tmp_path / "data"
    path.write_bytes(b"x" * size)
    assert pagecache.warm(path) == size
    assert pagecache.resident_bytes(path) == size


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        pagecache.resident_bytes(tmp_path / "none")


def test_a_file_of_another_user_that_cannot_be_written_is_unknown(tmp_path: Path, monkeypatch):
    path = tmp_path / "data"
    path.write_bytes(b"x")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert pagecache.resident_bytes(path) is None


def test_allocated_blocks_count_what_nobody_touched():
    fd = os.memfd_create("test")
    os.ftruncate(fd, 4 * MIB)
    assert pagecache.allocated_bytes(os.getpid(), fd) == 0
    os.posix_fallocate(fd, 0, 3 * MIB)
    assert pagecache.allocated_bytes(os.getpid(), fd) == 3 * MIB
    os.close(fd)

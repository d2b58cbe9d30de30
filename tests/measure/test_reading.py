"""Truths made by hand: processes that hold known bytes in known ways."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shardlab.measure import pagecache, reading, tree
from shardlab.measure.databytes import DataReading, read_data
from shardlab.measure.reading import TreeReading, read_tree
from shardlab.measure.tree import Proc
from shardlab.records import Memory

MIB = 1 << 20


def procs_of(*pids: int) -> list[Proc]:
    return tree.classify(tree.descendants(pids), None, dict(enumerate(pids)), tree.read_cmdline)


def used_mib(procs: list[Proc], folder: Path, files: tuple[str, ...] = ()) -> float:
    now = read_tree(procs)
    data = read_data(folder / "store.json", files, procs)
    found = reading.summarise(now, 0, data, epoch=0, t_s=0, hold_s=0, absent_ranks=(), reasons={})
    assert found.used_bytes is not None, found.reasons
    assert found.unreadable == 0
    return found.used_bytes / MIB


def share(folder: Path, **store: object) -> None:
    (folder / "store.json").write_text(json.dumps(store))


def test_private_copies_count_each(puppets, tmp_path: Path):
    ranks = puppets(3)
    before = used_mib(procs_of(*[rank.pid for rank in ranks]), tmp_path)
    for rank in ranks:
        rank.ask("private", 32)
    grown = used_mib(procs_of(*[rank.pid for rank in ranks]), tmp_path) - before
    assert grown == pytest.approx(96, abs=3)


@pytest.mark.parametrize("how", ["read", "map"])
def test_a_memory_file_counts_once_touched_or_not(puppets, tmp_path: Path, how: str):
    ranks = puppets(3)
    pids = [rank.pid for rank in ranks]
    before = used_mib(procs_of(*pids), tmp_path)
    fd = ranks[0].ask("memfd", 32)
    for rank in ranks:
        rank.ask("attach", f"/proc/{pids[0]}/fd/{fd}", how)
    share(tmp_path, bytes=32 * MIB, memfd={"pid": pids[0], "fd": int(fd), "nbytes": 32 * MIB})
    assert used_mib(procs_of(*pids), tmp_path) - before == pytest.approx(32, abs=3)


def test_a_memory_file_read_by_half_of_the_tree_and_a_stranger_counts_once(puppets, tmp_path: Path):
    rank, stranger = puppets(2)
    before = used_mib(procs_of(rank.pid), tmp_path)
    fd = rank.ask("memfd", 32)
    for puppet in (rank, stranger):
        puppet.ask("attach", f"/proc/{rank.pid}/fd/{fd}", "read")
    share(tmp_path, memfd={"pid": rank.pid, "fd": int(fd)})
    assert used_mib(procs_of(rank.pid), tmp_path) - before == pytest.approx(32, abs=3)


def test_writing_to_a_private_map_of_a_memory_file_makes_a_copy(puppets, tmp_path: Path):
    ranks = puppets(3)
    pids = [rank.pid for rank in ranks]
    before = used_mib(procs_of(*pids), tmp_path)
    fd = ranks[0].ask("memfd", 32)
    for rank, how in zip(ranks, ("read", "write", "write"), strict=True):
        rank.ask("attach", f"/proc/{pids[0]}/fd/{fd}", how)
    share(tmp_path, memfd={"pid": pids[0], "fd": int(fd)})
    assert used_mib(procs_of(*pids), tmp_path) - before == pytest.approx(96, abs=3)


def test_memory_shared_by_fork_counts_once(puppets, tmp_path: Path):
    (rank,) = puppets(1)
    before = used_mib(procs_of(rank.pid), tmp_path)
    rank.ask("private", 32)
    for number in range(3):
        rank.ask("fork")
        rank.ask("child", number, "read_all")
    procs = procs_of(rank.pid)
    assert [proc.role for proc in procs] == ["rank", "worker", "worker", "worker"]
    # Three more interpreters take a little each; another copy would be 32.
    assert 31 < used_mib(procs, tmp_path) - before < 48


def test_a_file_counts_its_resident_pages_once_whoever_maps_it(puppets, tmp_path: Path):
    path = tmp_path / "data"
    path.write_bytes(os.urandom(16 * MIB))
    pagecache.warm(path)
    ranks = puppets(2)
    pids = [rank.pid for rank in ranks]
    before = used_mib(procs_of(*pids), tmp_path)
    for rank in ranks:
        rank.ask("attach", path, "read")
    share(tmp_path, files=[str(path)])
    assert used_mib(procs_of(*pids), tmp_path, (str(path),)) - before == pytest.approx(16, abs=2)


def test_a_file_in_shared_memory_is_not_counted_as_file_and_as_memory(puppets, tmp_path: Path):
    path = Path("/dev/shm") / f"shardlab-test-{os.getpid()}"
    try:
        path.write_bytes(os.urandom(16 * MIB))
    except OSError:
        pytest.skip("no /dev/shm here")
    try:
        (rank,) = puppets(1)
        before = used_mib(procs_of(rank.pid), tmp_path)
        rank.ask("attach", path, "read")
        assert used_mib(procs_of(rank.pid), tmp_path, (str(path),)) - before == pytest.approx(16, abs=2)
    finally:
        path.unlink()


def test_a_memory_file_whose_owner_is_gone_is_unknown_and_never_zero(tmp_path: Path):
    share(tmp_path, memfd={"pid": 2**22 + 1, "fd": 3})
    data = read_data(tmp_path / "store.json", (), [])
    assert data.memfd_untouched_bytes is None
    assert "memfd_untouched_bytes" in data.reasons
    memory = TreeReading({Proc(1, 1, 0): Memory(1, 1, 1, 1, 0, 0)}, 0)
    found = reading.summarise(
        memory, 0, data, epoch=0, t_s=0, hold_s=0, absent_ranks=(), reasons={}
    )
    assert found.used_bytes is None
    assert str(2**22 + 1) in found.reasons["used_bytes"]


@pytest.mark.parametrize("content", ["{", "[]", '{"memfd": {"pid": "x", "fd": 1}}', '{"files": 3}'])
def test_a_store_file_that_makes_no_sense_is_unknown(tmp_path: Path, content: str):
    (tmp_path / "store.json").write_text(content)
    data = read_data(tmp_path / "store.json", (), [])
    assert data.memfd_untouched_bytes is None and data.file_resident_bytes is None


def test_a_missing_dataset_file_is_unknown(tmp_path: Path):
    data = read_data(tmp_path / "store.json", (str(tmp_path / "none"),), [])
    assert data.file_resident_bytes is None
    assert "none" in data.reasons["file_resident_bytes"]


def test_nothing_shared_is_truly_zero(tmp_path: Path):
    assert read_data(tmp_path / "store.json", (), []) == DataReading(0, 0, {})


def test_sums_by_role_and_rank():
    rank, worker = Proc(1, 1, 0, "rank", 0), Proc(2, 2, 1, "worker", 0, 0)
    server, other = Proc(3, 3, 1, "forkserver", 0), Proc(4, 4, 0, "rank", 1)
    each = {rank: 1, worker: 10, server: 100, other: 1000}
    memory = {proc: Memory(*[value] * 6) for proc, value in each.items()}
    found = reading.summarise(
        TreeReading(memory, 2), 5, DataReading(10_000, 20_000),
        epoch=3, t_s=1.5, hold_s=0.5, absent_ranks={7, 5}, reasons={"idle": "no"},
    )
    assert found.by_rank == {0: Memory(*[11] * 6), 1: Memory(*[1000] * 6)}
    assert found.rank_process == {0: Memory(*[1] * 6), 1: Memory(*[1000] * 6)}
    assert found.by_role == {
        "rank": Memory(*[1001] * 6), "worker": Memory(*[10] * 6), "forkserver": Memory(*[100] * 6),
    }
    assert found.used_bytes == 1111 + 1111 + 10_000 + 20_000
    assert found.retained_bytes == 5
    assert (found.processes, found.unreadable) == (6, 2)
    assert (found.complete, found.absent_ranks) == (False, (5, 7))
    assert set(found.reasons) == {"idle", "absent_ranks", "unreadable"}


def test_no_readable_process_is_unknown_and_never_zero():
    nothing = TreeReading({}, 2)
    found = reading.summarise(
        nothing, 0, DataReading(), epoch=0, t_s=0, hold_s=0, absent_ranks=(), reasons={}
    )
    assert found.used_bytes is None and found.pss_total_bytes is None and found.retained_bytes is None
    assert "used_bytes" in found.reasons


def test_processes_that_may_not_be_read_are_counted(monkeypatch, tmp_path: Path):
    (tmp_path / "5").mkdir()
    (tmp_path / "5/smaps_rollup").write_text("Rss: 8 kB\nPss: 8 kB\n")

    def refuse(pid: int, root: Path) -> Memory:
        raise PermissionError(13, "Permission denied")

    gone = Proc(6, 1, 1)
    assert read_tree([Proc(5, 1, 1), gone], tmp_path).unreadable == 0
    monkeypatch.setattr(reading.procfs, "memory", refuse)
    assert read_tree([Proc(5, 1, 1), gone], tmp_path) == TreeReading({}, 2)



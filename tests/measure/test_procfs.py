from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.measure import procfs

ROLLUP = """\
55c44541d000-7ffe2c919000 ---p 00000000 00:00 0                          [rollup]
Rss:                1748 kB
Pss:                 331 kB
Pss_Dirty:           112 kB
Pss_Anon:            112 kB
Pss_File:            219 kB
Pss_Shmem:             0 kB
Shared_Clean:       1596 kB
Shared_Dirty:          0 kB
Private_Clean:        40 kB
Private_Dirty:       112 kB
"""

SMAPS = """\
55c44541d000-55c44541e000 r-xp 00000000 fd:01 77                         /usr/bin/a b kB
Rss:                   4 kB
Pss:                   2 kB
Private_Clean:         0 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
7f10e4a00000-7f10e8a00000 rw-s 00000000 00:01 2051                       /memfd:samples (deleted)
Rss:               65536 kB
Pss:               16384 kB
Private_Clean:         0 kB
Private_Dirty:      4096 kB
Anonymous:          4096 kB
7f10e8a00000-7f10e8b00000 r--s 04000000 00:01 2051                       /memfd:samples (deleted)
Rss:                1024 kB
Pss:                 256 kB
Private_Clean:         0 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
7f10e8b00000-7f10e8c00000 rw-p 00000000 00:00 0
Rss:                 100 kB
Pss:                 100 kB
Private_Clean:         0 kB
Private_Dirty:       100 kB
Anonymous:           100 kB
VmFlags: rd wr mr mw me
"""

STATUS = """\
Name:\tpython
SigCgt:\t0000010180000002
voluntary_ctxt_switches:\t12
nonvoluntary_ctxt_switches:\t5
"""


def test_rollup_gives_every_field_in_bytes():
    memory = procfs.smaps_rollup(ROLLUP)
    assert memory.rss_bytes == 1748 * 1024
    assert memory.pss_bytes == 331 * 1024
    assert memory.uss_bytes == 152 * 1024
    assert memory.pss_anon_bytes == 112 * 1024
    assert memory.pss_file_bytes == 219 * 1024
    assert memory.pss_shmem_bytes == 0


@pytest.mark.parametrize("field", ["Pss_Anon", "Pss_File", "Pss_Shmem", "Rss", "Pss", "Private_Dirty"])
def test_a_field_that_is_not_printed_is_none_and_never_zero(field):
    text = "\n".join(line for line in ROLLUP.splitlines() if not line.startswith(field + ":")) + "\n"
    column = {"Private_Dirty": "uss"}.get(field, field.lower()) + "_bytes"
    assert getattr(procfs.smaps_rollup(text), column) is None


def test_whole_smaps_is_summed():
    memory = procfs.smaps_rollup(SMAPS)
    assert memory.rss_bytes == (4 + 65536 + 1024 + 100) * 1024
    assert memory.pss_bytes == (2 + 16384 + 256 + 100) * 1024
    assert memory.uss_bytes == 4196 * 1024
    assert memory.pss_anon_bytes is None


def test_named_mappings_of_one_file_are_added_without_the_pages_written_privately():
    named = procfs.smaps_named(SMAPS, lambda mapped: mapped.path.startswith("/memfd:"))
    assert named == {("00:01", 2051, "/memfd:samples (deleted)"): (16384 - 4096 + 256) * 1024}


def test_mappings_without_a_file_are_never_asked_for():
    named = procfs.smaps_named(SMAPS, lambda mapped: True)
    assert sorted(mapped.inode for mapped in named) == [77, 2051]


def test_statm_counts_resident_pages():
    assert procfs.statm_rss("2264 437 399 5 0 133 0\n", 4096) == 437 * 4096


@given(comm=st.text(st.characters(codec="ascii", exclude_characters="\n"), max_size=15))
def test_stat_is_read_whatever_the_name_of_the_process_is(comm):
    rest = "S 4239 1 1 0 -1 4194304 1 2 3 4 10 20 3 4 20 0 1 0 125859 1 2 3 4 5 99 6"
    assert procfs.stat(f"4240 ({comm}) {rest}") == (4239, "S", 125859, 30, 7, 99)


def test_status_says_which_signals_are_caught():
    mask = procfs.status_signals_caught(STATUS)
    caught = [number for number in range(1, 65) if mask >> (number - 1) & 1]
    assert caught == [2, 32, 33, 41]
    assert procfs.status_signals_caught("Name:\tx\n") == 0


def test_status_counts_both_kinds_of_switches():
    assert procfs.status_switches(STATUS) == 17
    assert procfs.status_switches("Name:\tx\n") is None


def test_cgroup_paths_of_both_versions():
    assert procfs.cgroup_paths("5:cpu,cpuacct:/a\n4:memory:/job/7\n0::/\n") == {
        "cpu": "/a", "cpuacct": "/a", "memory": "/job/7", "": "/",
    }
    assert procfs.cgroup_paths("0::/user.slice/x:y\n") == {"": "/user.slice/x:y"}


def test_no_limit_is_none():
    assert procfs.cgroup_bytes("max\n") is None
    assert procfs.cgroup_bytes("9223372036854771712\n") is None
    assert procfs.cgroup_bytes("") is None
    assert procfs.cgroup_bytes("1048576\n") == 1048576


def test_memory_comes_from_the_root_that_is_given(tmp_path: Path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/smaps_rollup").write_text(ROLLUP)
    assert procfs.memory(7, tmp_path).pss_bytes == 331 * 1024
    assert procfs.read_memory(8, tmp_path) is None


def test_a_kernel_without_rollup_is_read_from_smaps(tmp_path: Path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/smaps").write_text(SMAPS)
    assert procfs.memory(7, tmp_path).uss_bytes == 4196 * 1024


def test_a_zombie_has_no_memory():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError):
        procfs.memory(process.pid)
    process.wait()


def test_this_process_is_read_alive():
    memory = procfs.memory(os.getpid())
    parts = (memory.pss_anon_bytes or 0) + (memory.pss_file_bytes or 0) + (memory.pss_shmem_bytes or 0)
    assert memory.pss_bytes and abs(memory.pss_bytes - parts) <= 16384  # each is rounded to a KiB
    stat = procfs.read_stat(os.getpid())
    assert stat and stat.ppid == os.getppid()
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        mask = procfs.status_signals_caught(procfs.read("self", "status"))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert mask >> (signal.SIGUSR2 - 1) & 1


def test_without_proc_psutil_stands_in(tmp_path: Path):
    memory = procfs.memory(os.getpid(), tmp_path / "no-such-folder")
    assert memory.rss_bytes and memory.uss_bytes
    assert memory.pss_bytes is None
    assert procfs.read_memory(2**22 + 1, tmp_path / "no-such-folder") is None

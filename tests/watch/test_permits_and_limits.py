"""What a kernel refuses and what it limits, on /proc and cgroup folders made by hand, and on the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command import SOURCE
from shardlab.measure import procfs
from shardlab.measure.census.result import Subject
from shardlab.measure.census.take import take
from shardlab.measure.cgroup import CGROUP, clean_cache_bytes
from shardlab.measure.procfs import PROC
from shardlab.watching.limits import Limits
from shardlab.watching.permits import refusals

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")
KIB = 1 << 10


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc in which nothing is refused, with process 7 of user 1000."""
    root = tmp_path / "proc"
    for folder in ("self", "7", "sys/kernel/yama"):
        (root / folder).mkdir(parents=True)
    for name in ("pagemap", "mounts"):
        (root / "self" / name).write_text("")
    for name in ("smaps", "smaps_rollup"):
        (root / "self" / name).write_text("Pss:                   4 kB\n")
    (root / "version").write_text("Linux version 6.8.0")
    (root / "self/cgroup").write_text("0::/job\n")
    (root / "7/cgroup").write_text("0::/job\n")
    (root / "7/status").write_text("Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n")
    (root / "7/smaps_rollup").write_text("")
    (root / "7/mem").write_text("")
    return root


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    """Version 2, where the parent of the job's group limits it."""
    root = tmp_path / "cgroup"
    (root / "job").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("memory")
    (root / "job/memory.max").write_text("1000000\n")
    (root / "job/memory.current").write_text("950000\n")
    (root / "job/memory.stat").write_text("anon 500000\ninactive_file 100000\nactive_file 50000\n")
    (root / "job/memory.events").write_text("oom 0\noom_kill 2\n")
    return root


def lost(root: Path, cgroup_root: Path, uid: int = 1000) -> dict[str, str]:
    return {refusal.lost: refusal.sentence for refusal in refusals([7], root, cgroup_root, uid)}


def closed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The kernel opens none of these: a folder of one's own would, to root."""
    real = os.open

    def refusing(path: str, *how: int) -> int:
        if str(path).endswith(names):
            raise PermissionError(1, "Operation not permitted", path)
        return real(path, *how)

    monkeypatch.setattr(os, "open", refusing)


def test_where_nothing_is_refused_nothing_is_said(proc: Path, cgroups: Path):
    assert lost(proc, cgroups) == {}


def test_another_users_process_takes_sudo(proc: Path, cgroups: Path, monkeypatch: pytest.MonkeyPatch):
    closed(monkeypatch, "7/mem", "7/smaps_rollup")
    said = lost(proc, cgroups, uid=1001)
    assert set(said) == {"the census", "PSS"}
    assert "it belongs to another user (1000). Cure: watch as that user, or with sudo" in said["PSS"]


@pytest.mark.parametrize(("scope", "cure"), [("1", "-m shardlab.watch -- COMMAND"), ("2", "sudo"), ("3", "restart")])
def test_yama_costs_the_census_alone(
    scope: str, cure: str, proc: Path, cgroups: Path, monkeypatch: pytest.MonkeyPatch
):
    (proc / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    closed(monkeypatch, "7/mem")
    said = lost(proc, cgroups)
    assert set(said) == {"the census"}
    assert f"ptrace_scope is {scope}" in said["the census"]
    assert cure in said["the census"]


def test_a_process_that_does_not_let_itself_be_read(proc: Path, cgroups: Path, monkeypatch: pytest.MonkeyPatch):
    closed(monkeypatch, "7/mem", "7/smaps_rollup")
    assert "PR_SET_DUMPABLE" in lost(proc, cgroups)["PSS"]


def test_a_sandbox_without_pagemap_costs_the_census_alone(proc: Path, cgroups: Path):
    (proc / "self/pagemap").unlink()
    (proc / "version").write_text("Linux version 4.4.0 gVisor")
    said = lost(proc, cgroups)
    assert set(said) == {"the census"}
    assert "gVisor has no pagemap" in said["the census"]


def test_wsl_1_has_no_pagemap_and_wsl_2_is_a_machine_within_windows(proc: Path, cgroups: Path):
    (proc / "version").write_text("Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1)")
    said = lost(proc, cgroups)
    assert set(said) == {"what Windows holds"}
    assert ".wslconfig" in said["what Windows holds"]
    (proc / "version").write_text("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)")
    (proc / "self/pagemap").unlink()
    said = lost(proc, cgroups)
    assert set(said) == {"the census"}
    assert "WSL 1 has no pagemap. Cure: wsl --set-version DISTRIBUTION 2" in said["the census"]


MAPS = "00401000-00405000 rw-p 00000000 00:00 0\n"


def test_without_a_true_pagemap_a_process_is_unreadable_and_not_empty(proc: Path):
    for name, content in (("maps", MAPS), ("statm", "4 4 0 0 0 4 0"), ("mem", "")):
        (proc / "7" / name).write_text(content)
    found = take([Subject(7, 7)], root=proc)
    assert (found.processes, found.unreadable) == (0, {7: "this kernel has no pagemap"})
    with (proc / "7/pagemap").open("wb") as file:
        file.truncate(0x405 * 8)  # zeros, as a sandbox tells
    found = take([Subject(7, 7)], root=proc)
    assert found.processes == 0
    assert "pagemap shows nothing of it" in found.unreadable[7]
    (proc / "7/maps").write_text("")
    assert "ended" in take([Subject(7, 7)], root=proc).unreadable[7]


def test_a_pagemap_of_zeros_is_found_out(proc: Path, cgroups: Path, monkeypatch: pytest.MonkeyPatch):
    assert "the census" not in lost(PROC, CGROUP)
    monkeypatch.setattr(os, "pread", lambda *_: bytes(8))
    assert "pagemap shows nothing of memory that is there" in lost(PROC, CGROUP)["the census"]


def test_without_smaps_there_is_no_pss(proc: Path, cgroups: Path):
    (proc / "self/smaps_rollup").unlink()
    assert lost(proc, cgroups) == {}  # smaps has it
    (proc / "self/smaps").unlink()
    assert set(lost(proc, cgroups)) == {"PSS"}


def test_root_without_the_capability_is_told_how_a_container_gets_it(
    proc: Path, cgroups: Path, monkeypatch: pytest.MonkeyPatch
):
    (proc / "self/status").write_text("Name:\twatch\nCapEff:\t00000000a80425fb\n")  # a container's by default
    closed(monkeypatch, "7/mem", "7/smaps_rollup")
    said = lost(proc, cgroups, uid=0)
    assert set(said) == {"the census", "PSS"}
    assert all("--cap-add SYS_PTRACE" in sentence for sentence in said.values())


def test_who_hides_from_smaps_too_is_not_blamed_on_yama(
    proc: Path, cgroups: Path, monkeypatch: pytest.MonkeyPatch
):
    (proc / "sys/kernel/yama/ptrace_scope").write_text("1\n")
    closed(monkeypatch, "7/mem", "7/smaps_rollup")
    assert "PR_SET_DUMPABLE" in lost(proc, cgroups)["the census"]


def test_version_2_without_the_memory_controller_limits_none(proc: Path, cgroups: Path):
    (cgroups / "cgroup.controllers").write_text("cpu pids\n")
    assert set(lost(proc, cgroups)) == {"the memory limit"}


HIDDEN_ROLLUP = """
mount --bind /dev/null /proc/{pid}/smaps_rollup && exec {python} -c '
from shardlab.measure import procfs
assert procfs.read({pid}, "smaps_rollup") == ""
print(procfs.memory({pid}).pss_bytes)'
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_where_smaps_rollup_is_hidden_smaps_says_the_same():
    child = subprocess.Popen(["sleep", "60"])
    try:
        script = HIDDEN_ROLLUP.format(pid=child.pid, python=sys.executable)
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script], env=os.environ | {"PYTHONPATH": SOURCE}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        due = procfs.memory(child.pid).pss_bytes
        assert due is not None
        # libraries have other sharers by now
        assert int(done.stdout) == pytest.approx(due, abs=256 * KIB), done.stderr
    finally:
        child.kill()
        child.wait()


def test_hidepid_no_cgroup_and_no_proc_at_all(proc: Path, tmp_path: Path):
    (proc / "self/mounts").write_text("proc /proc proc rw,nosuid,hidepid=invisible 0 0\n")
    said = lost(proc, tmp_path / "none")
    assert set(said) == {"processes", "the memory limit"}
    (nothing,) = refusals([7], tmp_path / "none", tmp_path / "none", 1000)
    assert "run the job on Linux" in nothing.cure


def test_the_limit_of_the_jobs_own_cgroup_leaves_out_what_the_kernel_gives_back(proc: Path, cgroups: Path):
    (proc / "7/cgroup").write_text("0::/job/step\n")
    (cgroups / "job/step").mkdir()
    limits = Limits(proc, cgroups)
    limits.look([7])
    (limit,) = limits.of_groups()
    assert (limit.used, limit.limit, limit.where) == (800_000, 1_000_000, "cgroup job")
    assert limit.ratio == pytest.approx(0.8)
    assert limits.kills() == 0
    (cgroups / "job/memory.events").write_text("oom 0\noom_kill 3\n")
    assert limits.kills() == 1
    (cgroups / "job/memory.events").unlink()  # the job's end may take its group with it
    assert limits.kills() == 1


def test_of_several_limits_the_fullest_counts_and_kills_of_siblings_are_summed(proc: Path, cgroups: Path):
    for pid, name in ((7, "a"), (8, "b")):
        (proc / str(pid)).mkdir(exist_ok=True)
        (proc / str(pid) / "cgroup").write_text(f"0::/job/{name}\n")
        group = cgroups / "job" / name
        group.mkdir()
        (group / "memory.max").write_text("8000000\n")
        (group / "memory.current").write_text("100\n")
        (group / "memory.events").write_text("oom_kill 5\n")
    limits = Limits(proc, cgroups)
    limits.look([7, 8])
    assert [(limit.limit, limit.where) for limit in limits.of_groups()] == [(1_000_000, "cgroup job")]
    for name in "ab":
        (cgroups / "job" / name / "memory.events").write_text("oom_kill 6\n")
    (cgroups / "job/memory.events").write_text("oom_kill 4\n")  # with its children's
    assert limits.kills() == 2


def test_version_1_and_what_is_not_limited(proc: Path, tmp_path: Path):
    group = tmp_path / "cgroup/memory/job"
    group.mkdir(parents=True)
    (proc / "7/cgroup").write_text("4:memory:/job\n")
    (group / "memory.limit_in_bytes").write_text("1000\n")
    (group / "memory.usage_in_bytes").write_text("900\n")
    (group / "memory.stat").write_text("total_inactive_file 300\n")
    (group / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 1\n")
    limits = Limits(proc, tmp_path / "cgroup")
    limits.look([7])
    assert [(limit.used, limit.limit) for limit in limits.of_groups()] == [(600, 1000)]
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert list(limits.of_groups()) == []


def test_what_a_group_may_swap_and_what_is_left(proc: Path, cgroups: Path):
    (proc / "7/cgroup").write_text("0::/job/step\n")
    (cgroups / "job/step").mkdir()
    for group, most, used in (("job", "8000", "2000"), ("job/step", "4000", "3000")):
        (cgroups / group / "memory.swap.max").write_text(f"{most}\n")
        (cgroups / group / "memory.swap.current").write_text(f"{used}\n")
    limits = Limits(proc, cgroups)
    limits.look([7])
    assert [(one.name, one.used, one.limit, one.where) for one in limits.of_groups()] == [
        ("memory limit", 800_000, 1_000_000, "cgroup job"), ("swap limit", 3000, 4000, "cgroup job/step"),
    ]  # fmt: skip
    for group, most in (("job", "max"), ("job/step", "0")):  # 0: it may not swap, so none can run out
        (cgroups / group / "memory.swap.max").write_text(f"{most}\n")
    assert [one.name for one in limits.of_groups()] == ["memory limit"]


@pytest.mark.parametrize(("both", "due"), [(1500, [(600, 1000), (900, 1500)]), (1000, [(600, 1000)])])
def test_version_1_counts_swap_together_with_memory(
    both: int, due: list[tuple[int, int]], proc: Path, tmp_path: Path
):
    group = tmp_path / "cgroup/memory/job"
    group.mkdir(parents=True)
    (proc / "7/cgroup").write_text("4:memory:/job\n")
    for name, size in (("limit", 1000), ("usage", 900), ("memsw.limit", both), ("memsw.usage", 1200)):
        (group / f"memory.{name}_in_bytes").write_text(f"{size}\n")
    (group / "memory.stat").write_text("total_inactive_file 300\n")
    limits = Limits(proc, tmp_path / "cgroup")
    limits.look([7])
    assert [(one.used, one.limit) for one in limits.of_groups()] == due


def test_cache_that_has_to_be_written_first_is_not_free_and_shared_memory_never_is(proc: Path, cgroups: Path):
    # of 250,000 of files 100,000 are shared memory, and of the rest 40,000 are not on the disk yet
    (cgroups / "job/memory.stat").write_text(
        "file 250000\nshmem 100000\ninactive_file 100000\nactive_file 50000\nfile_dirty 30000\nfile_writeback 10000\n"
    )
    limits = Limits(proc, cgroups)
    limits.look([7])
    (limit,) = limits.of_groups()
    assert limit.used == 950_000 - 110_000
    old = "cache 9\ndirty 9\ntotal_inactive_file 70\ntotal_active_file 30\ntotal_dirty 15\ntotal_writeback 5\n"
    assert clean_cache_bytes(old, 1) == 80
    assert clean_cache_bytes("inactive_file 5\nfile_dirty 9\n", 2) == 0  # not read at one time


def test_where_no_cgroup_tells_of_kills_the_whole_machine_is_asked(proc: Path, tmp_path: Path):
    (proc / "7/cgroup").write_text("")
    (proc / "vmstat").write_text("nr_free_pages 17\noom_kill 5\n")
    limits = Limits(proc, tmp_path / "none")
    limits.look([7])
    assert (limits.kills(), limits.kills_of_the_machine()) == (None, 0)
    (proc / "vmstat").write_text("nr_free_pages 17\noom_kill 7\n")
    assert (limits.kills(), limits.kills_of_the_machine()) == (None, 2)
    (proc / "vmstat").unlink()
    assert limits.kills_of_the_machine() is None
    assert Limits(proc, tmp_path / "none").kills_of_the_machine() is None


def test_mappings_are_counted_of_the_process_that_has_most(proc: Path, cgroups: Path):
    (proc / "sys/vm").mkdir()
    (proc / "sys/vm/max_map_count").write_text("4\n")
    (proc / "7/maps").write_text(MAPS * 3)
    (proc / "8").mkdir()
    (proc / "8/maps").write_text(MAPS * 2)
    (limit,) = Limits(proc, cgroups).of([8, 7])
    assert (limit.name, limit.where, limit.used, limit.limit) == ("memory mappings", "process 7", 3, 4)
    assert limit.ratio == pytest.approx(0.75)


def test_the_machine_and_open_files(proc: Path, cgroups: Path):
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 100 kB\nSwapFree: 25 kB\n")
    (proc / "7/limits").write_text("Max open files            4                    4096                 files\n")
    (proc / "7/fd").mkdir()
    for name in "012":
        (proc / "7/fd" / name).write_text("")
    found = {limit.name: (limit.used, limit.limit) for limit in Limits(proc, cgroups).of([7])}
    assert found["memory"] == (600 * KIB, 1000 * KIB)
    assert found["swap"] == (75 * KIB, 100 * KIB)
    assert found["open files"] == (3, 4)


def test_of_a_process_of_ones_own_all_is_known_here():
    child = subprocess.Popen(["sleep", "60"])
    try:
        said = {refusal.lost for refusal in refusals([child.pid], PROC, CGROUP)}
        assert not said & {"PSS", "the census"}
    finally:
        child.kill()
        child.wait()


HIDDEN = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_real_process_that_hides_is_named():
    child = subprocess.Popen([sys.executable, "-c", HIDDEN], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        assert any("PR_SET_DUMPABLE" in refusal.reason for refusal in refusals([child.pid]))
    finally:
        child.kill()
        child.wait()

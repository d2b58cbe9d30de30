from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.measure import cgroup, kernel

ROLLUP = "Rss: 8 kB\nPss: 4 kB\nPss_Anon: 4 kB\nPss_File: 0 kB\nPss_Shmem: 0 kB\n"


@pytest.fixture
def machine(tmp_path: Path):
    """A machine made of files: ``write("proc/self/cgroup", "0::/a")``."""

    def write(path: str, content: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)

    write.proc, write.cgroup = tmp_path / "proc", tmp_path / "sys/fs/cgroup"
    write.proc.mkdir()
    return write


def test_a_kernel_that_offers_everything(machine):
    machine("proc/self/smaps_rollup", ROLLUP)
    machine("proc/self/pagemap", "12345678")
    machine("proc/self/task/9/children", "")
    machine("proc/self/cgroup", "0::/job/step\n")
    machine("sys/fs/cgroup/cgroup.controllers", "memory")
    machine("sys/fs/cgroup/job/memory.max", "4096000\n")
    machine("sys/fs/cgroup/job/memory.current", "1234\n")
    machine("sys/fs/cgroup/job/step/memory.max", "max\n")
    machine("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    assert kernel.capabilities(machine.proc, machine.cgroup) == kernel.Capabilities(
        smaps_rollup=True, pagemap=True, children_file=True, cgroup_version=2, cgroup_limit_bytes=4096000,
        cgroup_used_bytes=1234, thp="madvise", reasons={},
    )


def test_all_that_is_missing_has_its_reason(machine):
    able = kernel.capabilities(machine.proc, machine.cgroup)
    fields = set(vars(able)) - {"reasons"}
    assert set(able.reasons) == fields
    assert not any(getattr(able, name) for name in fields)


def test_the_tightest_limit_of_all_ancestors_counts_in_version_1(machine):
    machine("proc/self/cgroup", "4:memory:/job/step\n0::/\n")
    machine("sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "8000\n")
    machine("sys/fs/cgroup/memory/job/step/memory.usage_in_bytes", "10\n")
    machine("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n")
    machine("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4000\n")
    machine("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup.memory_limit(machine.proc, machine.cgroup) == (1, 5000, 4000)


def test_a_container_sees_its_own_cgroup_as_the_mount(machine):
    machine("proc/self/cgroup", "4:memory:/docker/0123\n")
    machine("sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n")
    machine("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n")
    assert cgroup.memory_limit(machine.proc, machine.cgroup) == (1, 7000, 6000)


def test_a_path_that_leaves_the_namespace_is_not_followed(machine):
    machine("proc/self/cgroup", "0::/../../etc\n")
    machine("sys/fs/cgroup/cgroup.controllers", "memory")
    assert cgroup.memory_limit(machine.proc, machine.cgroup) == (2, None, None)


def test_cpu_quota_of_both_versions(machine):
    machine("proc/self/cgroup", "0::/job\n")
    machine("sys/fs/cgroup/job/cpu.max", "150000 100000\n")
    assert cgroup.cpus(machine.proc, machine.cgroup) == 1.5
    machine("sys/fs/cgroup/job/cpu.max", "max 100000\n")
    assert cgroup.cpus(machine.proc, machine.cgroup) is None
    machine("proc/self/cgroup", "2:cpu,cpuacct:/job\n0::/\n")
    machine("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n")
    machine("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    assert cgroup.cpus(machine.proc, machine.cgroup) is None
    machine("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n")
    assert cgroup.cpus(machine.proc, machine.cgroup) == 2.0


def test_the_environment_has_its_columns_and_says_what_is_true():
    found = kernel.environment()
    assert list(found) == [
        "git_sha", "git_dirty", "python", "torch", "accelerate", "numpy", "kernel", "system", "cpu", "cores",
        "ram_bytes", "cgroup_version", "cgroup_limit_bytes", "cgroup_cpus", "thp", "omp_num_threads",
        "load_1m", "hostname", "argv",
    ]
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["kernel"] == os.uname().release
    assert all(value is None or isinstance(value, str | int | float) for value in found.values())


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_git_state_of_a_checkout_follows_its_files(tmp_path: Path):
    git(tmp_path, "init")
    (tmp_path / "kernel.py").write_text("1")
    assert kernel.git_state(tmp_path) == (None, None)  # there, but not part of the checkout
    git(tmp_path, "add", "kernel.py")
    git(tmp_path, "commit", "-m", "first")
    sha, dirty = kernel.git_state(tmp_path)
    assert sha and len(sha) == 40 and dirty is False
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "runs.csv").write_text("measured with this code")
    assert kernel.git_state(tmp_path) == (sha, False)
    (tmp_path / "kernel.py").write_text("2")
    assert kernel.git_state(tmp_path) == (sha, True)


def test_free_shared_memory_is_a_number_or_none(tmp_path: Path):
    free = kernel.shm_free_bytes(str(tmp_path))
    assert free is not None and free > 0
    assert kernel.shm_free_bytes(str(tmp_path / "none")) is None


@pytest.mark.parametrize("module", ["hold", "monitor", "kernel"])
def test_light_modules_import_nothing_heavy(module):
    heavy = ["torch", "numpy", "pandas", "accelerate", "psutil"]
    heavy += ["msgspec", "tyro"] if module == "hold" else []
    code = f"import sys, shardlab.measure.{module}; print([name for name in {heavy} if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(Path(kernel.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "[]"

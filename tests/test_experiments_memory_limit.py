"""What the cgroups of the experiments do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "experiments"))

import memory_limit

MIB = 1 << 20


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_nearest_cgroup_whose_children_limit_memory_is_chosen(tmp_path: Path) -> None:
    proc = written(tmp_path / "proc", {"self/cgroup": "0::/job/step\n"})
    children = {"job/cgroup.subtree_control": "cpu memory", "job/step/cgroup.subtree_control": ""}
    groups = written(tmp_path / "cgroup", {"cgroup.controllers": "memory", **children})
    assert memory_limit.place(proc, groups) == (memory_limit.VERSIONS[2], groups / "job")
    (groups / "job/cgroup.subtree_control").write_text("cpu")
    with pytest.raises(memory_limit.NoGroup, match="subtree_control"):
        memory_limit.place(proc, groups)


def test_without_a_cgroup_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(memory_limit.NoGroup, match="no cgroup controls memory"), memory_limit.group(
        None, tmp_path, tmp_path
    ):
        pass


def test_a_process_without_a_number_here_is_not_signalled() -> None:
    assert memory_limit.members("0\n17\n0\n5\n") == [17, 5]


def test_a_group_counts_kills_what_is_too_large_and_is_gone_afterwards() -> None:
    try:
        with memory_limit.group(48 * MIB) as made:
            fits = subprocess.run([*made.prefix, sys.executable, "-c", "bytearray(1 << 20)"], check=False)
            grows = subprocess.run([*made.prefix, sys.executable, "-c", "b'x' * (96 << 20)"], check=False)
            lasting = ["sh", "-c", "echo in && exec sleep 60"]
            left = subprocess.Popen([*made.prefix, *lasting], stdout=subprocess.PIPE)
            assert left.stdout is not None
            assert left.stdout.readline() == b"in\n"
            used = made.used()
    except memory_limit.NoGroup as reason:
        pytest.skip(str(reason))
    assert fits.returncode == 0
    assert grows.returncode == -9
    assert used.oom_kills == 1
    assert used.peak_bytes is None or used.peak_bytes <= 48 * MIB
    left.communicate(timeout=10)
    assert left.returncode == -9
    assert not made.folder.exists()

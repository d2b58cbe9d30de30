"""``shardlab.share`` and ``shardlab.loader`` in scripts of a user's own, under torchrun and alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import shardlab
from shardlab import library
from shardlab.errors import RunFailed, UsageError
from shardlab.world import World, without_rendezvous

THREE_LINES = Path(__file__).parents[1] / "experiments" / "three_lines.py"
ENVIRONMENT = without_rendezvous(os.environ) | {"OMP_NUM_THREADS": "1"}


def torchrun(ranks: int, script: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    for _ in range(10):
        done = subprocess.run(
            [*command, str(script), *args], env=ENVIRONMENT, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        # Gloo's threads outlive destroy_process_group where DDP still holds the group, and one that lets go of
        # the last tensor while Python ends aborts the process: in the plain script as well, one in ten under load.
        if "terminate called without an active exception" not in done.stderr:
            break
    return done


def run_script(folder: Path, text: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    return torchrun(ranks, script)


# Three lines


@pytest.fixture(scope="module")
def curves() -> dict[str, Any]:
    found = {}
    for feed in ("plain", "keyed", "ring"):
        done = torchrun(2, THREE_LINES, "--feed", feed)
        assert done.returncode == 0, done.stderr
        found[feed] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("feed", ["keyed", "ring"])
def test_a_plain_ddp_script_has_the_same_loss_curve_after_three_lines(feed: str, curves: Any) -> None:
    plain, ours = curves["plain"], curves[feed]
    assert ours["steps"] == plain["steps"] == 4003 // 64
    np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-5)


@pytest.mark.parametrize(("feed", "built"), [("plain", 2), ("keyed", 1), ("ring", 1)])
def test_one_rank_builds_where_each_did(feed: str, built: int, curves: Any) -> None:
    assert curves[feed]["built"] == built


COPIES = """
import gc, json, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch.utils.data import TensorDataset
import shardlab

SIZE = 128 << 20

def build():
    return TensorDataset(torch.full((SIZE // 4096, 1024), 1.0))

def pss():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))

dist.init_process_group("gloo")
dist.barrier()  # pages of the libraries are shared by all by now
before = pss()
dist.barrier()
dataset = {made}
loader = shardlab.loader(dataset, 64) if {shared} else torch.utils.data.DataLoader(dataset, 64)
total = sum(float(batch[0].sum()) for batch in loader)
gc.collect()
dist.barrier()
more = torch.tensor([pss() - before])
dist.barrier()
dist.all_reduce(more)
if dist.get_rank() == 0:
    print(json.dumps({{"copies": int(more) / SIZE}}))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("made", "shared", "copies"),
    [("build()", 0, 3), ("shardlab.share(build)", 1, 1)],
    ids=["plain", "shared"],
)
def test_three_ranks_hold_one_copy_instead_of_three(
    made: str, shared: int, copies: int, tmp_path: Path
) -> None:
    done = run_script(tmp_path, COPIES.format(made=made, shared=shared), ranks=3)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["copies"] == pytest.approx(copies, abs=0.35)


ERRORS = """
import os, sys
import torch.distributed as dist
import shardlab
from shardlab.errors import ShardlabError

def broken():
    raise OSError("the drive is not there")

class Unreadable:
    def __len__(self): return 10
    def __getitem__(self, index): raise OSError("the drive is not there")

dist.init_process_group("gloo")
try:
    {does}
except (ShardlabError, OSError) as error:
    sys.stderr.write(f"rank {{dist.get_rank()}}: {{type(error).__name__}}: {{error}}\\n")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("shardlab.share(broken)", "rank 0 could not build the shared copy: OSError: the drive is not there"),
        (
            "shardlab.loader(Unreadable(), 2, sampler='ring')",
            "rank 0 could not open the ring: OSError: the drive is not there",
        ),
        (
            "shardlab.share(lambda: iter([1]))",
            "rank 0 could not build the shared copy: UsageError: a shared copy is made of a dataset with",
        ),
    ],
)
def test_what_the_building_rank_raises_all_ranks_raise(does: str, said: str, tmp_path: Path) -> None:
    done = run_script(tmp_path, ERRORS.format(does=does))
    assert done.returncode == 0, done.stderr
    assert f"rank 1: RunFailed: {said}" in done.stderr
    assert f"rank 0: {said.split(': ')[1]}: {said.split(': ')[2]}" in done.stderr


FAILS = """
import os, signal, sys, time
import torch, torch.distributed as dist
import shardlab

class Troubled(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index):
        if index == 800: {trouble}
        return torch.zeros(10)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(os.getpid(), flush=True)
    for batch in shardlab.loader(Troubled(), 10, sampler="ring", shuffle=False):
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (
            "raise ValueError('this sample is rotten')",
            "reader 0 of the ring failed: ValueError: this sample is rotten",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "reader 0 of the ring died (exit code -9)"),
    ],
    ids=["error", "death"],
)  # fmt: skip
def test_a_script_over_a_ring_whose_reader_fails_ends_with_the_cause(
    trouble: str, said: str, tmp_path: Path
) -> None:
    done = run_script(tmp_path, FAILS.format(trouble=trouble))
    assert done.returncode != 0
    assert said in done.stderr


# Alone


def build() -> TensorDataset:
    return TensorDataset(torch.arange(40).reshape(10, 4), torch.arange(10))


@pytest.mark.parametrize("sampler", ["keyed", "ring"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_script_of_one_process_gets_what_dataloader_gives(sampler: Any, shared: bool) -> None:
    dataset = shardlab.share(build) if shared else build()
    loader = shardlab.loader(dataset, 4, sampler=sampler, shuffle=False, tail="keep")
    got = [[field.clone() for field in batch] for batch in loader]
    loader.close()
    due = list(DataLoader(build(), 4))
    assert len(got) == len(due) == len(loader) == 3
    for ours, theirs in zip(got, due, strict=True):
        assert type(ours) is type(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    "data",
    [
        {"x": torch.arange(1 << 12), "y": np.arange(1 << 12)},
        (torch.arange(1 << 12), np.arange(1 << 12, dtype=np.float16)),
        [bytes([n % 256]) * (n % 97) for n in range(30_000)],
        [{"id": n, "tags": ["a", ("b", n)], "none": None} for n in range(30_000)],
        torch.arange(1 << 14).reshape(1 << 7, 1 << 7),
    ],
    ids=["dict", "tuple", "bytes", "objects", "tensor"],
)
def test_whatever_holds_data_can_be_shared_and_reads_the_same(data: Any) -> None:
    shared = shardlab.share(lambda: data)
    assert len(shared) == len(data)
    for key in data if isinstance(data, dict) else range(0, len(data), 991):
        mine, theirs = data[key], shared[key]
        assert type(mine) is type(theirs)
        assert bool((mine == theirs).all()) if hasattr(mine, "all") else mine == theirs


class Named(TensorDataset):
    """A dataset with more to it than samples."""

    classes = ("cat", "dog")

    def describe(self) -> str:
        return f"{len(self)} pets"


def test_a_shared_dataset_has_the_attributes_that_the_dataset_has() -> None:
    dataset = shardlab.share(lambda: Named(torch.zeros(30, 100)))
    assert dataset.classes == ("cat", "dog")
    assert dataset.describe() == "30 pets"
    with pytest.raises(AttributeError, match="colour"):
        dataset.colour  # noqa: B018


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.arange(10))


def test_an_iterable_dataset_goes_through_the_ring_and_is_not_shared() -> None:
    with pytest.raises(UsageError, match=r"shardlab\.loader\(\.\.\., sampler='ring'\)"):
        shardlab.share(Stream)
    loader = shardlab.loader(Stream(), 4, sampler="ring", tail="keep")
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    loader.close()


@pytest.mark.parametrize("sampler", ["keyed", "ring"])
def test_ends_at_different_steps_are_refused_unless_the_loop_copes(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "current_world", lambda: World(0, 2, 0, 2))
    with pytest.raises(UsageError, match="uneven_ends=True"):
        shardlab.loader(build(), 4, sampler=sampler, tail="keep")
    shardlab.loader(build(), 4, tail="keep", uneven_ends=True)
    shardlab.loader(build(), 5, tail="keep")  # ten samples, five for each rank


@pytest.mark.parametrize("room", [{"held": 0}, {"held": -5}, {"slot_bytes": 0}, {"slot_bytes": -1}])
def test_a_ring_without_room_is_refused(room: Any) -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        shardlab.loader(build(), 4, sampler="ring", **room)


def test_a_slot_too_small_for_a_batch_is_named_with_the_cure() -> None:
    loader = shardlab.loader(build(), 4, sampler="ring", slot_bytes=128)
    with pytest.raises(RunFailed, match="does not fit into a slot of 128 bytes per rank"):
        next(iter(loader))
    loader.close()


def test_a_rank_may_hold_as_many_batches_as_it_asked_for() -> None:
    loader = shardlab.loader(build(), 1, sampler="ring", shuffle=False, held=10)
    kept = list(loader)
    assert [int(label) for _, label in kept] == list(range(10))
    loader.close()
    with pytest.raises(UsageError, match="held and slot_bytes are of the ring"):
        shardlab.loader(build(), 1, held=10)


def test_batches_that_grow_past_their_slots_name_the_cure_and_it_works() -> None:
    texts = ["x" * (1 << (2 * n)) for n in range(13)]
    loader = shardlab.loader(texts, 1, sampler="ring", shuffle=False)
    with pytest.raises(RunFailed, match=r"shardlab\.loader\(\.\.\., slot_bytes=\.\.\.\) with more"):
        list(loader)
    loader.close()
    loader = shardlab.loader(texts, 1, sampler="ring", shuffle=False, slot_bytes=17 << 20, held=20)
    assert [text for (text,) in loader] == texts
    loader.close()


def test_several_ranks_without_a_process_group_are_told_to_make_one(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import shardlab\nshardlab.share(lambda: [1])", ranks=2)
    assert "several ranks need a process group before they share anything" in done.stderr


SMALL = """
import sys, torch, shardlab
from torch.utils.data import TensorDataset
if __name__ == "__main__":
    data = torch.arange(1 << 23).reshape(4096, 2048)  # 64 MiB
    dataset = shardlab.share(lambda: TensorDataset(data))
    loader = shardlab.loader(dataset, 64, sampler="ring", workers=2, worker_start_method=sys.argv[1])
    print(sum(int(batch.sum()) for batch, in loader) == int(data.sum()))
    loader.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small /dev/shm")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_share_and_ring_work_where_dev_shm_has_16_mib(method: str, tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(SMALL)
    command = f"mount -t tmpfs -o size=16m none /dev/shm && exec {sys.executable} {script} {method}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr

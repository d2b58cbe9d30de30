"""Each store gives a rank its dataset, as many copies of it as it promises, and no more to worker processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from shardlab import plugins
from shardlab.dataset import describe_sample
from shardlab.dataset._arrays import ArrayDataset, ListDataset, SerializedList
from shardlab.errors import RunFailed
from shardlab.store import NodeShare, StoreNote, warm_ratio
from shardlab.store import inherited as inherited_store
from shardlab.store import mmap as mmap_store
from shardlab.store import private as private_store
from shardlab.store import reader as reader_store
from shardlab.store import shared as shared_store
from shardlab.store._share import build_once
from shardlab.world import World

DATA = torch.arange(60_000, dtype=torch.int32).reshape(200, 300)  # 240 kB
LEADER, FOLLOWER = World(0, 2, 0, 2), World(1, 2, 1, 2)
ONE_COPY = [shared_store, mmap_store]


class Builds:
    """A source that counts how often it was built."""

    def __init__(self, dataset: Any = None) -> None:
        self.dataset, self.count = dataset, 0

    def __call__(self) -> Any:
        self.count += 1
        return self.dataset if self.dataset is not None else ArrayDataset(DATA.clone())


def share(folder: Path, world: World = LEADER, source: Any = None, **more: Any) -> NodeShare:
    return NodeShare(world=world, run_dir=folder, source=source or Builds(), **more)


class InBatches(ArrayDataset):
    """A dataset that fetches and collates in a way of its own."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]

    @staticmethod
    def collate_fn(items: list[Any]) -> Any:
        return torch.stack(items).sum()


# One copy


@pytest.mark.parametrize("store", ONE_COPY)
def test_the_leader_builds_and_the_others_map_what_it_built(store: Any, tmp_path: Path) -> None:
    first, second = Builds(), Builds()
    leader = store.open(share(tmp_path, LEADER, first))
    follower = store.open(share(tmp_path, FOLLOWER, second))
    assert (first.count, second.count) == (1, 0)
    for dataset in (leader, follower):
        assert len(dataset) == 200
        assert torch.equal(torch.stack([dataset[n] for n in range(200)]), DATA)


@pytest.mark.parametrize("store", ONE_COPY)
def test_the_note_says_what_one_copy_weighs(store: Any, tmp_path: Path) -> None:
    assert store.open(share(tmp_path)).note.bytes == DATA.nbytes


@pytest.mark.parametrize("store", ONE_COPY)
def test_a_change_in_one_rank_reaches_no_other(store: Any, tmp_path: Path) -> None:
    leader = store.open(share(tmp_path, LEADER))
    follower = store.open(share(tmp_path, FOLLOWER))
    leader[7].zero_()
    follower[9].add_(1)
    assert torch.equal(leader[9], DATA[9])
    assert torch.equal(follower[7], DATA[7])
    assert torch.equal(leader[7], torch.zeros(300, dtype=torch.int32))
    assert torch.equal(store.open(share(tmp_path, FOLLOWER))[7], DATA[7])


@pytest.mark.parametrize("store", ONE_COPY)
def test_a_dataset_goes_to_another_process_as_a_handle(store: Any, tmp_path: Path) -> None:
    dataset = store.open(share(tmp_path))
    sent = pickle.dumps(dataset)
    assert len(sent) < 10_000 < DATA.nbytes
    assert torch.equal(pickle.loads(sent)[150], DATA[150])


@pytest.mark.parametrize("store", ONE_COPY)
def test_a_dataset_of_objects_is_shared_as_bytes(store: Any, tmp_path: Path) -> None:
    records = [{"id": n, "name": f"{n:090d}"} for n in range(20_000)]
    source = Builds(ListDataset(records))
    leader = store.open(share(tmp_path, LEADER, source))
    follower = store.open(share(tmp_path, FOLLOWER))
    assert isinstance(follower.inner, SerializedList)
    assert leader[19_999] == follower[19_999] == records[19_999]
    assert len(pickle.dumps(follower)) < 10_000


@pytest.mark.parametrize("store", ONE_COPY)
def test_a_dataset_without_large_arrays_is_shared_too(store: Any, tmp_path: Path) -> None:
    store.open(share(tmp_path, LEADER, Builds(ArrayDataset(torch.arange(3)))))
    follower = store.open(share(tmp_path, FOLLOWER))
    assert [int(follower[n]) for n in range(3)] == [0, 1, 2]
    assert follower.note.bytes == 0


@pytest.mark.parametrize("store", ONE_COPY)
def test_what_a_dataset_can_do_besides_survives(store: Any, tmp_path: Path) -> None:
    dataset = store.open(share(tmp_path, source=Builds(InBatches(DATA.clone()))))
    assert torch.equal(torch.stack(dataset.__getitems__([3, 5])), DATA[[3, 5]])
    assert dataset.collate_fn([DATA[0], DATA[1]]) == DATA[:2].sum()


@pytest.mark.parametrize("store", ONE_COPY)
def test_a_plain_dataset_gets_no_abilities_it_did_not_have(store: Any, tmp_path: Path) -> None:
    dataset = store.open(share(tmp_path, source=Builds(ListDataset([1, 2]))))
    assert not hasattr(dataset, "__getitems__")
    assert not hasattr(dataset, "collate_fn")


@pytest.mark.parametrize("store", ONE_COPY)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_it_however_they_start(store: Any, method: str, tmp_path: Path) -> None:
    dataset = store.open(share(tmp_path))
    loader = DataLoader(dataset, 50, num_workers=2, multiprocessing_context=method)
    assert torch.equal(torch.cat(list(loader)), DATA)


SMALL_SHM = """
import sys, torch
from pathlib import Path
from shardlab.dataset._arrays import ArrayDataset
from shardlab.store import NodeShare, shared, mmap
from shardlab.world import World
from torch.utils.data import DataLoader

class Plain(torch.utils.data.Dataset):
    def __init__(self, data): self.data = data
    def __len__(self): return len(self.data)
    def __getitem__(self, index): return self.data[index]

if __name__ == "__main__":
    data = torch.arange(1 << 22).reshape(4096, 1024)  # 32 MiB
    store = {"shared": shared, "mmap": mmap, "none": None}[sys.argv[1]]
    share = NodeShare(world=World(0, 1, 0, 1), run_dir=Path(sys.argv[3]), source=lambda: ArrayDataset(data))
    dataset = store.open(share) if store else Plain(data)
    loader = DataLoader(dataset, 16, num_workers=2, multiprocessing_context=sys.argv[2])
    print(sum(int(batch.sum()) for batch in loader) == int(data.sum()))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small /dev/shm")
@pytest.mark.parametrize(("store", "fits"), [("shared", True), ("mmap", True), ("none", False)])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_get_it_without_room_for_a_copy_in_dev_shm(
    store: str, fits: bool, method: str, tmp_path: Path
) -> None:
    """Where /dev/shm has 8 MiB, 32 MiB of plain tensors cannot be sent to a worker."""
    script = tmp_path / "small.py"
    script.write_text(SMALL_SHM)
    command = f"mount -t tmpfs -o size=8m none /dev/shm && exec {sys.executable} {script} {store} {method} {tmp_path}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout == "True\n") is fits, done.stderr


def test_a_shared_copy_lies_in_no_file_system(tmp_path: Path) -> None:
    dataset = shared_store.open(share(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]
    assert dataset.note.memfd is not None
    assert "shardlab-dataset" in os.readlink(f"/proc/self/fd/{dataset.note.memfd.fd}")


def test_a_mapped_copy_is_one_file_of_the_run_that_a_change_never_reaches(tmp_path: Path) -> None:
    dataset = mmap_store.open(share(tmp_path))
    dataset[0].fill_(-1)
    (file,) = dataset.note.files
    assert Path(file).parent == tmp_path
    assert np.array_equal(np.fromfile(file, np.int32).reshape(200, 300), DATA.numpy())


def test_a_file_that_is_mapped_was_read_into_memory_before(tmp_path: Path) -> None:
    mmap_store.open(share(tmp_path))
    assert warm_ratio(tmp_path) == 1.0


def test_a_dataset_that_lies_in_files_is_mapped_there_and_not_built(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", DATA.numpy())
    source = Builds()
    mapped = lambda: ArrayDataset(  # noqa: E731
        torch.from_numpy(np.load(tmp_path / "data.npy", mmap_mode="c"))
    )
    files = (str(tmp_path / "data.npy"),)
    dataset = mmap_store.open(share(tmp_path, source=source, mapped=mapped, files=files))
    assert source.count == 0
    assert torch.equal(dataset[199], DATA[199])
    assert not (tmp_path / "store.bin").exists()
    assert warm_ratio(tmp_path) == 1.0


def test_a_store_without_files_has_no_warm_ratio(tmp_path: Path) -> None:
    private_store.open(share(tmp_path))
    assert warm_ratio(tmp_path) is None


# Building once


def test_a_follower_waits_until_the_leader_has_built(tmp_path: Path) -> None:
    note = StoreNote(bytes=5, files=("x",))
    found: list[StoreNote] = []
    waiting = threading.Thread(
        target=lambda: found.append(build_once(share(tmp_path, FOLLOWER), lambda: StoreNote(bytes=-1)))
    )
    waiting.start()
    assert not found
    build_once(share(tmp_path, LEADER), lambda: note)
    waiting.join(10)
    assert found == [note]


def test_a_follower_gives_up_after_the_time_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="local rank 0 did not finish building the shared copy within 0 s"):
        build_once(share(tmp_path, FOLLOWER, timeout_s=0.05), StoreNote)


def test_an_error_of_the_dataset_is_its_own(tmp_path: Path) -> None:
    def broken() -> Any:
        raise ValueError("no such image")

    for store in (private_store, shared_store, mmap_store):
        with pytest.raises(ValueError, match="no such image"):
            store.open(share(tmp_path, source=broken))


# The others


def test_private_builds_in_each_rank(tmp_path: Path) -> None:
    source = Builds()
    first = private_store.open(share(tmp_path, LEADER, source))
    second = private_store.open(share(tmp_path, FOLLOWER, source))
    assert source.count == 2
    assert first is not second


def test_inherited_is_the_object_of_the_launcher(tmp_path: Path) -> None:
    source, dataset = Builds(), TensorDataset(DATA)
    assert inherited_store.open(share(tmp_path, FOLLOWER, source, inherited=dataset)) is dataset
    assert source.count == 0


def test_only_the_reading_rank_builds_and_the_others_are_as_long(tmp_path: Path) -> None:
    source = Builds()
    facts = {"samples": 200, "sample": describe_sample(DATA[0])}
    rank_0 = reader_store.open(share(tmp_path, LEADER, source, **facts))
    rank_1 = reader_store.open(share(tmp_path, FOLLOWER, source, **facts))
    assert source.count == 1
    assert torch.equal(rank_0[3], DATA[3])
    assert len(rank_1) == 200
    assert rank_1[3].shape == DATA[3].shape
    assert rank_1[3].dtype == DATA.dtype
    assert len(pickle.dumps(rank_1)) < 1_000
    for outside in (-1, 200):
        with pytest.raises(IndexError):
            rank_1[outside]


def test_every_store_says_what_it_is_in_one_line() -> None:
    assert set(plugins.find("store")) >= {"private", "inherited", "reader", "shared", "mmap"}
    for name, plugin in plugins.find("store").items():
        assert plugin.summary.strip(), name
        assert plugin.defines("open"), name

"""The remaining kinds: records, and the torchvision datasets over small files of their format."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardlab.dataset import DatasetSpec, measure, open_dataset
from shardlab.dataset._units import parse_bytes, parse_count
from shardlab.errors import RunFailed, UsageError


def records(text: str, seed: int = 0) -> list[dict[str, Any]]:
    dataset: Any = open_dataset(DatasetSpec(text, seed=seed))
    return list(dataset)


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001])
def test_records_are_as_many_as_asked_and_numbered(count: int) -> None:
    assert [record["image_id"] for record in records(f"records:{count}")] == list(range(count))


def test_a_record_is_what_an_annotation_file_holds() -> None:
    record = records("records:1001")[1000]
    assert [type(value) for value in record.values()] == [int, str, int, int, str, list, float]
    assert len(record["bbox"]) == 4
    assert record["file_name"] == "000000001000.jpg"


def test_records_share_no_objects() -> None:
    first, second = records("records:1k")[500:502]
    assert first is not second
    for name in ("file_name", "category", "bbox", "score"):
        assert first[name] is not second[name]


def test_records_depend_on_seed_and_index_alone() -> None:
    assert records("records:1500")[:1200] == records("records:1200")
    assert records("records:10", seed=1) != records("records:10")


def test_a_wrong_number_of_records_is_refused() -> None:
    with pytest.raises(UsageError, match="records:N"):
        records("records:many")


def write_mnist(folder: Path, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        header = struct.pack(">4i", 0x803, *images.shape)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">2i", 0x801, len(labels))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def test_mnist_is_read_from_its_folder_and_measured_exactly(tmp_path: Path) -> None:
    images = np.arange(20 * 784, dtype=np.uint8).reshape(20, 28, 28)
    write_mnist(tmp_path, images, np.arange(20, dtype=np.uint8) % 10)
    spec = DatasetSpec("mnist", data_dir=str(tmp_path))
    image, label = open_dataset(spec)[13]
    assert label == 3
    np.testing.assert_allclose(image[0].numpy() * 0.3081 + 0.1307, images[13] / 255, atol=1e-6)
    facts = measure(spec)
    assert (facts.samples, facts.dataset_bytes) == (20, 20 * 784 + 20 * 8)


def test_the_folder_of_mnist_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path, np.zeros((4, 28, 28), np.uint8), np.zeros(4, np.uint8))
    monkeypatch.setenv("SHARDLAB_DATA", str(tmp_path))
    assert len(open_dataset(DatasetSpec("mnist"))) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["mnist", "fashion-mnist"])
def test_without_data_and_network_the_folder_and_the_cure_are_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(RunFailed, match=rf"{tmp_path / 'none'}.*--data-dir or SHARDLAB_DATA"):
        open_dataset(DatasetSpec(kind, data_dir=str(tmp_path / "none")))
    assert list(tmp_path.iterdir()) == []


def test_mnist_takes_no_arguments() -> None:
    with pytest.raises(UsageError, match="--data-dir"):
        open_dataset(DatasetSpec("mnist:/data"))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1", 1), ("64KiB", 65536), ("256MiB", 2**28), ("1GiB", 2**30), ("1.5kB", 1500),
        ("2 GB", 2 * 10**9),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text, "a size") == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e6", "1mib", "1_000", "\u0661", "nan", "1 2"])
def test_other_sizes_and_counts_are_refused(text: str) -> None:
    for parse in (parse_bytes, parse_count):
        with pytest.raises(UsageError, match="a size"):
            parse(text, "a size")

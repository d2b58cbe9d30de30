"""A folder of class folders with images becomes shards of tensors, each of its own size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shardlab.dataset import DatasetSpec, kind_of, open_dataset
from shardlab.errors import UsageError
from shardlab.shard import main
from shardlab.shards.reader import ShardedArrays

SIZES = [("cats", 5, 7), ("cats", 3, 2), ("dogs", 8, 8), ("owls", 1, 4)]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Lossless images whose pixels are known; an empty class and a file that is no image beside them."""
    for number, (name, height, width) in enumerate(SIZES):
        (tmp_path / "images" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number, height, width)).save(tmp_path / "images" / name / f"{number}.png")
    (tmp_path / "images" / "bats").mkdir()
    (tmp_path / "images" / "cats" / "notes.txt").write_text("of no class")
    return tmp_path / "images"


def pixels(number: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


def test_images_come_back_pixel_by_pixel_with_their_class(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(images), str(tmp_path / "out"), "--samples-per-shard", "3"]) == 0
    assert capsys.readouterr().out.startswith("4 samples in 2 shards")
    read = list(ShardedArrays(tmp_path / "out"))
    assert [label.item() for _, label in read] == [1, 1, 2, 3]  # bats are class 0
    assert all(label.dtype == torch.int64 for _, label in read)
    for number, (image, _) in enumerate(read):
        _, height, width = SIZES[number]
        assert image.dtype == torch.uint8
        assert torch.equal(image, torch.from_numpy(pixels(number, height, width)).permute(2, 0, 1))


def test_a_folder_of_images_is_a_dataset(images: Path) -> None:
    spec = DatasetSpec(str(images))
    assert kind_of(spec) == "image-folder"
    image, label = open_dataset(spec)[2]
    assert (tuple(image.shape), label) == ((3, 8, 8), 2)


def test_grey_and_transparent_images_have_three_channels_too(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (4, 2), 7).save(tmp_path / "a" / "1.png")
    Image.new("RGBA", (2, 3), (1, 2, 3, 4)).save(tmp_path / "a" / "2.png")
    grey, clear = (image for image, _ in open_dataset(DatasetSpec(str(tmp_path))))  # type: ignore[attr-defined]
    assert grey.shape == (3, 2, 4)
    assert grey.unique().tolist() == [7]
    assert clear[:, 0, 0].tolist() == [1, 2, 3]


def test_shards_among_images_are_shards(images: Path) -> None:
    (images / "manifest.json").touch()
    assert kind_of(DatasetSpec(str(images))) == "shards"


def test_a_folder_without_images_says_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "notes.txt").touch()
    (tmp_path / "1.png").touch()  # in no class
    with pytest.raises(UsageError, match="class folders with images"):
        kind_of(DatasetSpec(str(tmp_path)))


@pytest.mark.parametrize("content", [b"", b"not an image", "cut"])
def test_an_image_that_cannot_be_read_is_named(
    images: Path, tmp_path: Path, content: bytes | str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = images / "dogs" / "2.png"
    path.write_bytes(path.read_bytes()[:60] if isinstance(content, str) else content)
    assert main([str(images), str(tmp_path / "out")]) == 1
    assert "2.png cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()
    Image.fromarray(pixels(2, 8, 8)).save(path)
    assert main([str(images), str(tmp_path / "out")]) == 0  # and goes on

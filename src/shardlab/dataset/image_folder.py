"""path/to/images, a folder of class folders with images, as torchvision's ImageFolder reads it.

A sample is ``(uint8 tensor of shape (3, height, width), class)``, each image of its own size, decoded when it is
read. Classes are the names of the folders in their order.
"""

from __future__ import annotations

from typing import Any

from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import PILToTensor

from shardlab.dataset._spec import DatasetSpec
from shardlab.errors import RunFailed

HOLDS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Suffixes of files in the folders of a folder by which it is known."""


def open(args: str, spec: DatasetSpec) -> ImageFolder:
    """The images, each decoded when it is asked for."""
    del spec
    return ImageFolder(args, transform=PILToTensor(), loader=load, allow_empty=True)


def load(path: str) -> Any:
    """The image in RGB. Raises RunFailed naming a file that is none, or a part of one."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise RunFailed(f"image {path} cannot be read: {error}. Cure: copy it again, or remove it") from None

"""What is trained, and what a batch has to look like for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shardlab import plugins
from shardlab.errors import UsageError
from shardlab.trainconfig import TrainConfig

CLASSES = 10


class Cnn(nn.Module):
    """Two convolutions and two linear layers, for images of shape (batch, channels, height, width).

    Images of one channel may lack its axis. Returns (batch, classes).
    """

    def __init__(self, channels: int, height: int, width: int, *, dropout: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 32, 3)
        self.second = nn.Conv2d(32, 64, 3)
        self.hidden = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.last = nn.Linear(128, CLASSES)
        self.drop_maps = nn.Dropout2d(0.25 if dropout else 0.0)
        self.drop_hidden = nn.Dropout(0.5 if dropout else 0.0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Class scores, not normalised."""
        images = images.unsqueeze(1) if images.dim() == 3 else images
        maps = functional.relu(self.second(functional.relu(self.first(images))))
        maps = self.drop_maps(functional.max_pool2d(maps, 2)).flatten(1)  # maps: (batch, 64 * height * width)
        scores: torch.Tensor = self.last(self.drop_hidden(functional.relu(self.hidden(maps))))
        return scores


def build(train: TrainConfig, sample: Mapping[str, Any]) -> nn.Module:
    """The model that ``--model`` names, in ``--dtype``; ``sample`` describes one of the dataset."""
    if train.model == "cnn":
        model: Any = Cnn(*_image_shape(sample), dropout=train.dropout)
    else:
        model = plugins.load_reference(train.model, "--model")()
        if not isinstance(model, nn.Module):
            raise UsageError("--model must make a torch.nn.Module", type(model).__name__)
    return model.to(dtype_of(train))  # type: ignore[no-any-return]


def dtype_of(train: TrainConfig) -> torch.dtype:
    """As torch has it."""
    return torch.float64 if train.dtype == "float64" else torch.float32


def inputs_and_labels(batch: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The two halves of a batch: a pair, or a dict of two. Images of bytes get a channel, and numbers 0 to 1.

    Whole numbers as labels become int64, which torch's losses ask for. Raises UsageError for anything else.
    """
    pair = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise UsageError(
            "a batch to train on must be (inputs, labels)", _said(batch),
            cure="a dataset of pairs, or a collate_fn that makes them",
        )  # fmt: skip
    inputs, labels = (torch.as_tensor(half) for half in pair)
    if inputs.dtype == torch.uint8:
        inputs = (inputs.unsqueeze(1) if inputs.dim() == 3 else inputs).to(dtype) / 255
    labels = labels.to(dtype) if labels.is_floating_point() else labels.long()
    return inputs.to(dtype) if inputs.is_floating_point() else inputs, labels


def _image_shape(sample: Mapping[str, Any]) -> tuple[int, int, int]:
    """(channels, height, width) of a sample (image, label), from its description."""
    image = (sample.get("items") or [{}])[0]
    shape = tuple(image.get("shape", ()))
    shape = (1, *shape) if len(shape) == 2 else shape
    if len(shape) != 3 or min(shape[1:]) < 6:
        raise UsageError(
            "--model cnn needs samples (image, label) with images of shape (channels, height, width), 6 or more",
            f"a first item of shape {shape}", cure="give a model of your own by --model file.py:factory",
        )  # fmt: skip
    return shape[0], shape[1], shape[2]


def _said(batch: Any) -> str:
    size = f" of {len(batch)}" if isinstance(batch, (Mapping, list, tuple)) else ""
    return f"{type(batch).__name__}{size}"

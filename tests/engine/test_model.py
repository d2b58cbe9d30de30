"""What is trained: its shape for any images, its weights from the seed, and the batches that it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from shardlab.dataset import describe_sample
from shardlab.engine.model import Cnn, build, inputs_and_labels
from shardlab.errors import UsageError
from shardlab.trainconfig import TrainConfig
from trainees import named

BYTES = torch.arange(2 * 7 * 9, dtype=torch.uint8)


def described(*shape: int) -> dict[str, Any]:
    """A sample (image, label)."""
    return describe_sample((torch.zeros(shape), 3))


def weights(train: TrainConfig, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    model = build(train, described(1, 8, 8))
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(6, 40), st.integers(6, 40), st.integers(1, 3))
def test_the_cnn_gives_ten_scores_for_images_of_any_size(
    channels: int, height: int, width: int, batch: int
) -> None:
    assert Cnn(channels, height, width)(torch.zeros(batch, channels, height, width)).shape == (batch, 10)


def test_the_cnn_of_mnist_has_as_many_weights_as_can_be_counted_by_hand() -> None:
    first, second = 32 * 9 + 32, 64 * 32 * 9 + 64
    hidden, last = (64 * 12 * 12) * 128 + 128, 128 * 10 + 10
    model = build(TrainConfig(), described(1, 28, 28))
    assert sum(parameter.numel() for parameter in model.parameters()) == first + second + hidden + last


@pytest.mark.parametrize(("shape", "images"), [((8, 8), (3, 8, 8)), ((1, 8, 8), (3, 1, 8, 8))])
def test_images_of_one_channel_may_lack_its_axis(shape: tuple[int, ...], images: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = build(TrainConfig(dropout=False), described(*shape))
    batch = torch.linspace(0, 1, 3 * 64)
    scores = model(batch.view(images))
    assert torch.equal(scores, model(batch.view(3, 1, 8, 8)))


def test_the_seed_alone_makes_the_weights_of_either_dtype() -> None:
    one = weights(TrainConfig())
    assert torch.equal(one, weights(TrainConfig(dropout=False)))
    assert not torch.equal(one, weights(TrainConfig(), seed=1))
    precise = weights(TrainConfig(dtype="float64"))
    assert (one.dtype, precise.dtype) == (torch.float32, torch.float64)
    assert torch.equal(one.double(), precise)


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_is_there_in_training_alone_and_can_be_left_out(dropout: bool) -> None:
    model = build(TrainConfig(dropout=dropout), described(1, 8, 8))
    images = torch.rand(4, 1, 8, 8)
    assert torch.equal(model(images), model(images)) != dropout
    model.eval()
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize(
    "sample",
    [
        describe_sample({"label": 3}),
        described(1, 5, 8),
        described(8),
        describe_sample(torch.zeros(1, 8, 8)),
        {},
    ],
    ids=["records", "too low", "one axis", "no label", "nothing"],
)
def test_samples_that_are_no_images_are_refused_with_the_way_out(sample: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match=r"--model cnn needs samples \(image, label\).*Cure: .*file\.py:factory"
    ):
        build(TrainConfig(), sample)


def test_a_model_of_ones_own_is_made_by_its_factory_whatever_the_samples_are() -> None:
    model = build(TrainConfig(model=named("normed"), dtype="float64"), {"kind": "str"})
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float64}


@pytest.mark.parametrize(
    ("name", "parts"),
    [("no_module", "must make a torch.nn.Module, but got 'int'"), ("absent", "must define a callable")],
)
def test_a_factory_that_makes_no_model_is_refused(name: str, parts: str) -> None:
    with pytest.raises(UsageError, match=parts):
        build(TrainConfig(model=named(name)), {})


# Batches


@pytest.mark.parametrize("shape", [(2, 7, 9), (2, 1, 7, 9)])
def test_bytes_become_numbers_from_0_to_1_with_an_axis_of_channels(shape: tuple[int, ...]) -> None:
    images, _ = inputs_and_labels([BYTES.view(shape), torch.zeros(2, dtype=torch.int64)], torch.float64)
    assert (images.shape, images.dtype) == ((2, 1, 7, 9), torch.float64)
    assert images.flatten()[[0, 51, 102]].tolist() == [0, 0.2, 0.4]
    white, _ = inputs_and_labels(
        (torch.full((1, 6, 6), 255, dtype=torch.uint8), torch.zeros(1)), torch.float32
    )
    assert white.unique().tolist() == [1]


@pytest.mark.parametrize("kind", [list, tuple, lambda pair: dict(zip("xy", pair, strict=True))])
def test_a_batch_is_a_pair_or_a_dict_of_two(kind: Any) -> None:
    inputs, labels = inputs_and_labels(kind([torch.tensor([[0.5]]), torch.tensor([3])]), torch.float64)
    assert (inputs.tolist(), inputs.dtype, labels.tolist()) == ([[0.5]], torch.float64, [3])


def test_whole_numbers_stay_what_they_are() -> None:
    tokens, _ = inputs_and_labels([torch.tensor([[7, 8]]), torch.tensor([1])], torch.float32)
    assert tokens.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_whole_numbers_can_be_trained_on(dtype: torch.dtype) -> None:
    inputs, labels = inputs_and_labels(
        [torch.zeros(3, 4), torch.tensor([0, 3, 1], dtype=dtype)], torch.float64
    )
    assert functional.cross_entropy(inputs, labels).item() == pytest.approx(torch.tensor(4.0).log().item())


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (torch.zeros(4, 3), "'Tensor of 4'|'Tensor'"),
        ([torch.zeros(1)] * 3, "'list of 3'"),
        ({"x": torch.zeros(1)}, "'dict of 1'"),
        ("ab", "'str'"),
    ],
    ids=["tensor", "three", "one", "text"],
)
def test_a_batch_of_anything_else_is_refused_with_what_it_is(batch: Any, said: str) -> None:
    with pytest.raises(
        UsageError, match=rf"must be \(inputs, labels\), but got ({said}).*Cure: a dataset of pairs"
    ):
        inputs_and_labels(batch, torch.float32)

"""What does the last, incomplete round do to who gets what, and to an evaluation?

Hypothesis: ``DistributedSampler`` repeats fewer samples than there are ranks, Accelerate's ``even_batches`` up to a
whole round, some of them more than once where there are few; without even batches none is repeated and ranks get
unequal steps, on which a DistributedDataParallel job hangs. Repeats counted into an accuracy move it; each sample
counted once does not. Nothing here is measured by a clock: the same on every machine.

How to read the answer. ``padding.csv``: a row for each setting and sampler, unshuffled; ``delivered``, ``distinct``,
``duplicates``, ``missing`` over all ranks, ``steps`` by rank, ``most`` how often the sample came that came most.
``accuracy`` counts all that was delivered of the first ``samples`` images of MNIST's test split, as predicted by the
nearest mean image of the training split, as a script does that sums over ranks what each was given;
``accuracy_exact`` counts each image once. ``sampling_errors.csv``: known
mistakes; ``measured`` is a share (or, of order hashes, a number), ``expected`` what arithmetic says, ``published``
what the source says, empty where it gives no figure, and ``agrees`` whether measured is that; where nothing is
published, whether it is what is expected.

    python experiments/padding.py [--only TEXT]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import deliveries_of
from commandline import options
from deliveries_of import WAYS, Delivered
from publishing import publish
from sampling_errors import errors
from shardlab.dataset import DatasetSpec, open_dataset

SETTINGS = [  # samples, ranks, batch of a rank
    (10, 4, 4), (3, 4, 2), (1001, 4, 32), (1000, 8, 64), (10_000, 3, 64), (10_000, 8, 64),
]  # fmt: skip
CLASSES = 10


@dataclass(frozen=True)
class Row:
    """One sampler in one setting."""

    name: str
    sampler: str
    samples: int
    world_size: int
    batch_size: int
    delivered: int
    distinct: int
    duplicates: int
    missing: int
    duplicates_ratio: float
    most: int
    steps: str
    steps_are_equal: bool
    accuracy: float | None
    accuracy_exact: float
    accuracy_error: float | None


def main() -> None:
    """Count, print, write both CSVs."""
    only = options(__doc__, "the same: nothing is left out").only
    right = predicted_right()
    rows = [row for row in counted(right) if only in row.name]
    for row in rows:
        print(line(row))
    mistakes = [error for error in errors() if only in error.name]
    for error in mistakes:
        print(f"{error.name:58} {error.measured:.4f}, expected {error.expected:.4f}  {error.agrees}")
    if not only:
        publish("padding.csv", rows)
        publish("sampling_errors.csv", mistakes)
        picture()


def counted(right: NDArray[np.bool_]) -> Iterator[Row]:
    """All samplers in all settings."""
    for samples, world_size, batch_size in SETTINGS:
        for sampler, way in WAYS.items():
            found = deliveries_of.delivered(way, samples, world_size, batch_size)
            yield row_of(sampler, found, world_size, batch_size, right)


def row_of(
    sampler: str, found: Delivered, world_size: int, batch_size: int, right: NDArray[np.bool_]
) -> Row:
    """One sampler in one setting; ``right``: bool[samples or more], whether each prediction was right."""
    accuracy, exact = accuracy_of(found.indices, right), accuracy_of(range(found.samples), right)
    assert exact is not None
    return Row(
        f"{sampler}: {found.samples} samples, {world_size} ranks x {batch_size}",
        sampler, found.samples, world_size, batch_size,
        len(found.indices), found.distinct, found.duplicates, found.missing, found.duplicates / found.samples,
        found.most, " ".join(map(str, found.steps)), len(set(found.steps)) == 1,
        accuracy, exact, None if accuracy is None else accuracy - exact,
    )  # fmt: skip


def accuracy_of(indices: Iterable[int], right: NDArray[np.bool_]) -> float | None:
    """The share of right predictions among ``indices``, each as often as it stands there; None where none does."""
    chosen = right[np.fromiter(indices, np.int64)]
    return float(chosen.mean()) if len(chosen) else None


def predicted_right() -> NDArray[np.bool_]:
    """Whether the nearest mean image names the class, for each image of MNIST's test split: bool[10000]."""
    images, labels = split("mnist")
    means = np.stack([images[labels == label].mean(axis=0) for label in range(CLASSES)])  # (classes, pixels)
    tested, truth = split("mnist:test")
    # |x - m|^2 without the |x|^2 that all classes have in common
    distances = (means**2).sum(axis=1) - 2 * tested @ means.T  # (samples, classes)
    return np.asarray(distances.argmin(axis=1) == truth)


def split(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images, float32 of shape (samples, pixels) from 0 to 1, and their labels."""
    found = open_dataset(DatasetSpec(name))
    images = found.data.numpy().reshape(len(found.data), -1).astype(np.float32) / 255  # type: ignore[attr-defined]
    return images, found.targets.numpy()  # type: ignore[attr-defined]


def line(row: Row) -> str:
    """A row for the screen."""
    accuracy = "none" if row.accuracy is None else f"{row.accuracy:.4f}"
    return (
        f"{row.name:58} {row.delivered:6} delivered, {row.duplicates:4} twice, {row.missing:4} missing, "
        f"steps {row.steps:24} accuracy {accuracy} for {row.accuracy_exact:.4f}"
    )


def picture() -> None:
    """What was repeated, and what it does to the accuracy."""
    import figure

    frame = figure.table("padding.csv")
    frame = frame[frame["samples"] > 10]
    frame["setting"] = [f"{n:,} on {w} x {b}" for n, w, b in frame[["samples", "world_size", "batch_size"]].values]
    drawn, (left, right) = figure.panels(1, 2, height=4.0)
    for ax, value, text in (
        (left, "duplicates", "deliveries of a sample that had come"),
        (right, "accuracy_error", "accuracy counted less exact, points"),
    ):
        shown = frame.assign(low=frame[value], high=frame[value])
        if value == "accuracy_error":
            shown[[value, "low", "high"]] *= 100
        figure.points(ax, shown, "setting", value, "sampler")
        ax.axvline(0, color="#000000", linewidth=0.8)
        ax.set_xlabel(text)
    right.set_yticklabels([])
    left.set_ylabel("samples on ranks x batch")
    drawn.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.save(drawn, "padding.svg")


if __name__ == "__main__":
    main()

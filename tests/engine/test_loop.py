"""One epoch of one rank: what came is noted step by step, and the rank is held before its last step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardlab.engine.batch import computation
from shardlab.engine.loop import Epoch, Feed, LoopTools, compute_on, length_of
from shardlab.errors import RunFailed, UsageError
from shardlab.index import ledger as ledgers
from shardlab.index.ledger import RankLedger
from shardlab.measure.hold import Holder

FIVE = [[0, 1, 2], [3, 4], [5, 6, 7], [8], [9, 10]]


class Endless:
    """A loader of batches of indices, each index ten times its own float; without a length."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps, self.given, self.epochs = steps, 0, []  # type: ignore[var-annotated]

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        for indices in self.steps:
            self.given += 1
            yield 10 * torch.tensor(indices, dtype=torch.float32), indices


class Sized(Endless):
    def __init__(self, steps: list[Any], length: int | None = None) -> None:
        super().__init__(steps)
        self.length = len(steps) if length is None else length

    def __len__(self) -> int:
        return self.length


class Watched(Holder):
    """A real holder, without a monitor at the other end, that remembers when it was called."""

    loader: Endless
    held_at: list[int]
    ended_at: list[int]

    def hold(self, epoch: int, no_data: Any = ()) -> Any:
        self.held_at.append(self.loader.given)
        return super().hold(epoch)

    def ended(self, epoch: int) -> None:
        self.ended_at.append(epoch)
        super().ended(epoch)


def watched(folder: Path, loader: Endless) -> Watched:
    holder = Watched.connect(folder, 0, timeout_s=5)
    assert isinstance(holder, Watched)
    holder.loader, holder.held_at, holder.ended_at = loader, [], []
    return holder


def epoch_of(
    loader: Any,
    folder: Path,
    holder: Holder | None = None,
    expected: int | None = None,
    number: int = 3,
    keep_words: bool = False,
    compute: Any = None,
    **tools: Any,
) -> tuple[Epoch, RankLedger]:
    log = ledgers.Ledger.create(folder / "ledger", 4, words=keep_words)
    chosen = {
        "device": torch.device("cpu"), "words": None, "progress": lambda *_: None, "max_steps": None,
    }  # fmt: skip
    feed = Feed(loader, number, log, LoopTools(**chosen | tools), holder, expected)
    compute_on(feed, compute)
    epoch = feed.end()
    log.close()
    return epoch, ledgers.read(folder / "ledger")


def test_every_sample_is_noted_in_its_step(tmp_path: Path) -> None:
    epoch, kept = epoch_of(Sized(FIVE), tmp_path)
    assert kept.indices.tolist() == list(range(11))
    assert kept.ends.tolist() == [3, 5, 8, 9, 11]
    assert (epoch.steps, epoch.len_reported) == (5, 5)


def test_bytes_are_of_all_batches_and_of_the_largest(tmp_path: Path) -> None:
    epoch, _ = epoch_of(Sized(FIVE), tmp_path)
    assert (epoch.batch_bytes, epoch.largest_batch_bytes) == (11 * 4, 3 * 4)


def test_the_epoch_is_chosen_once_before_the_first_batch(tmp_path: Path) -> None:
    loader = Sized(FIVE)
    epoch_of(loader, tmp_path, number=7)
    assert loader.epochs == [7]


def test_the_end_of_the_stream_is_waited_for_too(tmp_path: Path) -> None:
    epoch, _ = epoch_of(Sized(FIVE), tmp_path)
    assert len(epoch.timer.waits_s) == 6


def test_an_epoch_cut_short_asks_for_no_batch_more(tmp_path: Path) -> None:
    loader = Sized(FIVE)
    epoch, kept = epoch_of(loader, tmp_path, max_steps=2)
    assert (epoch.steps, loader.given, kept.steps) == (2, 2, 2)
    assert len(epoch.timer.waits_s) == 2


def test_more_steps_than_there_are_change_nothing(tmp_path: Path) -> None:
    epoch, _ = epoch_of(Sized(FIVE), tmp_path, max_steps=50)
    assert epoch.steps == 5


def test_a_loader_without_batches_is_an_epoch_of_no_steps(tmp_path: Path) -> None:
    epoch, kept = epoch_of(Sized([]), tmp_path)
    assert (epoch.steps, epoch.batch_bytes, epoch.largest_batch_bytes, kept.steps) == (0, 0, 0, 0)


def test_an_empty_batch_is_a_step(tmp_path: Path) -> None:
    epoch, kept = epoch_of(Sized([[0], [], [1]]), tmp_path)
    assert epoch.steps == 3
    assert kept.ends.tolist() == [1, 1, 2]


def test_a_length_that_lies_is_reported_as_it_was_said(tmp_path: Path) -> None:
    epoch, _ = epoch_of(Sized(FIVE, length=9), tmp_path)
    assert (epoch.len_reported, epoch.steps) == (9, 5)


def test_a_loader_without_a_length_has_none() -> None:
    class Refuses:
        def __len__(self) -> int:
            raise TypeError("no length")

    assert length_of(Endless(FIVE)) is None
    assert length_of(Refuses()) is None


@pytest.mark.parametrize(
    "indices",
    [[4, 5], (4, 5), np.array([4, 5], np.int32), torch.tensor([4, 5]), torch.tensor([[4], [5]])],
    ids=repr,
)
def test_indices_may_come_in_any_shape(indices: Any, tmp_path: Path) -> None:
    class One(Endless):
        def __iter__(self) -> Iterator[Any]:
            yield torch.zeros(2), indices

    _, kept = epoch_of(One([]), tmp_path)
    assert kept.indices.tolist() == [4, 5]


@pytest.mark.parametrize(
    "item", [torch.zeros(3), "ab", {"x": 1, "y": 2}, (1, 2, 3), None, [torch.zeros(1)]], ids=repr
)
def test_a_loader_that_yields_no_pair_is_told_what_to_do(item: Any, tmp_path: Path) -> None:
    class Wrong(Endless):
        def __iter__(self) -> Iterator[Any]:
            yield item

    with pytest.raises(
        RunFailed, match=r"must yield \(batch, indices\), but it yielded \w+: use store\.indexed"
    ):
        epoch_of(Wrong([]), tmp_path)


def test_an_index_that_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    class Wrong(Endless):
        def __iter__(self) -> Iterator[Any]:
            yield torch.zeros(2), torch.tensor([0.5, 1.5])

    with pytest.raises(UsageError, match="one whole number for each sample"):
        epoch_of(Wrong([]), tmp_path)


def test_the_content_of_each_sample_is_kept_where_it_says_something(tmp_path: Path) -> None:
    def words(batch: torch.Tensor) -> Any:
        return batch.numpy().astype(np.uint64)

    _, kept = epoch_of(Sized(FIVE), tmp_path, words=words, keep_words=True)
    assert kept.words is not None
    assert kept.words.tolist() == [10 * index for index in range(11)]


def test_work_is_done_on_every_batch_and_its_time_is_kept_apart(tmp_path: Path) -> None:
    seen: list[int] = []
    epoch, _ = epoch_of(Sized(FIVE), tmp_path, compute=lambda batch: seen.append(len(batch)))
    assert seen == [3, 2, 3, 1, 2]
    idle, _ = epoch_of(Sized(FIVE), tmp_path)
    paused, _ = epoch_of(Sized(FIVE), tmp_path, compute=computation("2ms", torch.device("cpu")))
    assert idle.timer.compute_s == 0
    assert epoch.timer.compute_s > 0
    assert paused.timer.compute_s >= 5 * 0.002


def test_the_parts_of_the_time_make_up_the_whole(tmp_path: Path) -> None:
    epoch, _ = epoch_of(Sized(FIVE), tmp_path, compute=computation("1ms", torch.device("cpu")))
    timer = epoch.timer
    assert 0.9 < (timer.wait_s + timer.compute_s + timer.other_s) / timer.wall_s <= 1
    assert timer.first_batch_s == timer.waits_s[0]


def test_progress_is_told_after_each_step(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    epoch_of(Sized(FIVE), tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


# Holding


@pytest.mark.parametrize(
    ("loader", "options", "held_at"),
    [
        (Sized(FIVE), {}, [4]),
        (Sized(FIVE), {"max_steps": 3}, [2]),
        (Sized(FIVE), {"max_steps": 8}, [4]),
        (Sized(FIVE), {"max_steps": 1}, [0]),
        (Sized([[0]]), {}, [0]),
        (Sized([]), {}, [0]),
        (Endless(FIVE), {"expected": 5}, [4]),
        (Endless(FIVE), {"max_steps": 2}, [1]),
        (Sized(FIVE), {"expected": 2}, [4]),  # what the loader says itself goes before what came earlier
        (Endless(FIVE), {}, []),
        (Sized(FIVE, length=9), {}, []),
    ],
)
def test_a_rank_is_held_before_its_last_step(
    loader: Endless, options: dict[str, Any], held_at: list[int], tmp_path: Path
) -> None:
    loader.given = 0
    holder = watched(tmp_path, loader)
    epoch, _ = epoch_of(loader, tmp_path, holder, **options)
    assert holder.held_at == held_at
    assert epoch.steps == min(len(loader.steps), options.get("max_steps", 99))


def test_a_rank_that_was_not_held_says_that_it_is_done(tmp_path: Path) -> None:
    loader = Endless(FIVE)
    holder = watched(tmp_path, loader)
    epoch, _ = epoch_of(loader, tmp_path, holder)
    assert holder.ended_at == [3]
    assert epoch.hold is None


def test_without_a_monitor_the_epoch_goes_on_and_the_reason_is_known(tmp_path: Path) -> None:
    loader = Sized(FIVE)
    holder = watched(tmp_path, loader)
    epoch, kept = epoch_of(loader, tmp_path, holder)
    assert (epoch.hold, kept.steps) == (None, 5)
    assert "no monitor in" in holder.reason


class ReadAhead(Sized):
    """Each step takes four seconds of a clock that is told, but that whose batch was made while ranks were held."""

    def __init__(self, steps: list[Any], clock: list[float]) -> None:
        super().__init__(steps)
        self.clock, self.was_held = clock, False

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.clock[0] += 0.0 if self.was_held else 4.0
            self.was_held = False
            yield item


class Pausing(Watched):
    def hold(self, epoch: int, no_data: Any = ()) -> Any:
        self.loader.clock[0] += 100.0  # type: ignore[attr-defined]
        self.loader.was_held = True  # type: ignore[attr-defined]
        return super().hold(epoch)


@pytest.mark.parametrize("first_s", [0.0, 60.0])
def test_what_was_read_ahead_while_ranks_were_held_is_not_free(
    first_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    loader = ReadAhead(FIVE, clock)
    holder = Pausing.connect(tmp_path, 0, timeout_s=5)
    assert isinstance(holder, Pausing)
    holder.loader, holder.held_at, holder.ended_at = loader, [], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    clock_at_first = [first_s]

    def start_of_workers(_batch: Any) -> None:
        clock[0] += clock_at_first.pop() if clock_at_first else 0.0

    epoch, _ = epoch_of(loader, tmp_path, holder, compute=start_of_workers)
    assert holder.held_at == [4]
    assert epoch.timer.wall_s == first_s + 16  # the fifth was free
    # FIVE has 3, 2, 3, 1 and 2 samples in its steps: between the first and the hold 12 seconds for 6 of them.
    assert epoch.paced_s == first_s + 16 + 2 * 12 / 6


def test_an_epoch_that_is_not_held_takes_what_the_clock_says(tmp_path: Path) -> None:
    epoch, _ = epoch_of(Sized(FIVE), tmp_path)
    assert epoch.paced_s == epoch.timer.wall_s

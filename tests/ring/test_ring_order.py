"""Every rank gets its part of each step, in order, once, whatever the readers' speed and number."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rings import Numbers, answer, due, epoch, node, read_epochs, value_of, values, wait_for

from shardlab.errors import RunFailed
from shardlab.ring.loader import RingLoader
from shardlab.wake import Semaphores

STEPS = 23


@pytest.mark.parametrize(("readers", "slots"), [(1, 2), (2, 4), (3, 6)])
def test_the_order_is_the_same_however_many_read(readers: int, slots: int) -> None:
    with node(Numbers(), ranks=3, readers=readers, slots=slots) as made:
        others = {rank: made.follow(rank, read_epochs(STEPS, STEPS)) for rank in (1, 2)}
        for number in (0, 1):
            assert values(epoch(made.leader, number, STEPS)) == due(number, 0, STEPS)
        for rank, pipe in others.items():
            assert answer(pipe) == [due(0, rank, STEPS), due(1, rank, STEPS)]


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_slow_reader_of_three_changes_no_order(slow: int) -> None:
    with node(Numbers(slow=slow, pause_s=0.2), readers=3, slots=6) as made:
        assert values(epoch(made.leader, 0, 10)) == due(0, 0, 10)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 9])
def test_epochs_of_fewer_steps_than_slots_and_of_more_follow_each_other(steps: int) -> None:
    with node(Numbers(), readers=2, slots=4) as made:
        for number in range(3):
            assert values(epoch(made.leader, number, steps)) == due(number, 0, steps)


@pytest.mark.parametrize("taken", range(7))
def test_an_epoch_that_was_left_early_leaves_nothing_to_the_next(taken: int) -> None:
    def leave_early(loader: RingLoader, _pipe: Any) -> list[int]:
        batches = epoch(loader, 0, 12)
        for _ in range(3):
            next(batches)
        return values(epoch(loader, 1, 12))

    with node(Numbers(), ranks=2, readers=2, slots=4) as made:
        other = made.follow(1, leave_early)
        batches = epoch(made.leader, 0, 12)
        for _ in range(taken):
            next(batches)
        assert values(epoch(made.leader, 1, 12)) == due(1, 0, 12)
        assert answer(other) == due(1, 1, 12)


def test_a_rank_that_stops_reading_holds_the_readers_back_and_loses_nothing() -> None:
    def pause(loader: RingLoader, pipe: Any) -> list[int]:
        batches = epoch(loader, 0, STEPS)
        kept = [next(batches)]
        pipe.send("stopped")
        pipe.recv()
        first = values(kept)
        kept.clear()
        return first + values(batches)

    with node(Numbers(), ranks=2, slots=4) as made:
        other = made.follow(1, pause)
        batches = epoch(made.leader, 0, STEPS)
        assert answer(other) == "stopped"
        # Four more than the one that the other took, as there are slots.
        assert values(next(batches) for _ in range(5)) == due(0, 0, 5)
        due_next = made.leader.ring.filled(2, 0)  # that of step 5: the first turn of all is 1
        assert not made.leader.ring.semaphores.wait(due_next, 1.5)
        other.send("go on")
        assert values(batches) == due(0, 0, STEPS, first=5)
        assert answer(other) == due(0, 1, STEPS)


def test_a_waiting_rank_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    wait = Semaphores.wait

    def counted(semaphores: Semaphores, number: int, timeout_s: float) -> bool:
        waits.append(timeout_s)
        return wait(semaphores, number, timeout_s)

    with node(Numbers(slow=0, pause_s=2.0)) as made:
        batches = epoch(made.leader, 0, 2)
        monkeypatch.setattr(Semaphores, "wait", counted)
        next(batches)
    assert len(waits) < 40  # one in half a second; a loop that polls makes thousands


def test_an_iterator_that_is_through_stays_so() -> None:
    with node(Numbers()) as made:
        batches = epoch(made.leader, 0, 2)
        assert len(values(batches)) == 2
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(batches)


def test_a_rank_may_have_fewer_steps_than_the_others() -> None:
    def one_less(loader: RingLoader, _pipe: Any) -> list[list[int]]:
        found = []
        for number in (0, 1):
            loader.prepare(number, 0, 9, 8)
            found.append(values(iter(loader)))
        return found

    with node(Numbers(), ranks=2, slots=2) as made:
        other = made.follow(1, one_less)
        for number in (0, 1):
            assert values(epoch(made.leader, number, 9)) == due(number, 0, 9)
        assert answer(other) == [due(0, 1, 8), due(1, 1, 8)]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_readers_start_in_any_way(method: str) -> None:
    with node(Numbers(), readers=2, method=method) as made:
        assert values(epoch(made.leader, 0, 9)) == due(0, 0, 9)


def test_the_other_ranks_get_their_part_of_a_last_batch_though_the_leader_closes_at_once() -> None:
    with node(Numbers(slow=0, pause_s=0.3), ranks=2) as made:
        other = made.follow(1, read_epochs(3))
        assert values(epoch(made.leader, 0, 3)) == due(0, 0, 3)
        made.leader.close()
        assert answer(other) == [due(0, 1, 3)]


# Views


def test_a_batch_that_is_kept_too_long_ends_in_an_error_that_names_its_step_and_is_unchanged() -> None:
    with node(Numbers(), slots=4) as made:
        kept, error = [], ""
        batches = epoch(made.leader, 0, 6)
        with pytest.raises(RunFailed) as raised:
            for batch in batches:
                kept.append(batch)
        error = str(raised.value)
        assert "rank 0 of the node, step 4: the batch of step 0 is still held" in error
        assert "only 4 slots. Cure: keep copies" in error
        assert values(kept) == due(0, 0, 4)


def test_a_held_slot_of_one_rank_ends_the_others_with_the_same_words() -> None:
    with node(Numbers(), ranks=2, slots=4) as made:
        other = made.follow(1, lambda loader, _pipe: list(epoch(loader, 0, 9)) and "never")
        text = r"rank 1 of the node, step 4: the batch of step 0 is still held"
        with pytest.raises(RunFailed, match=text):
            values(epoch(made.leader, 0, 9))
        assert "the batch of step 0 is still held" in answer(other)


def test_what_is_kept_for_fewer_steps_than_there_are_slots_is_unchanged() -> None:
    with node(Numbers(), readers=2, slots=6) as made:
        kept: list[torch.Tensor] = []
        for step, batch in enumerate(epoch(made.leader, 0, 30)):
            kept.append(batch)
            del batch
            kept = kept[-4:]
            assert [int(b[0]) for b in kept] == due(0, 0, step + 1, max(0, step - 3))
            assert all(b.unique().numel() == 1 for b in kept)


@pytest.mark.parametrize("look", ["slice", "numpy", "storage", "dtype"])
def test_any_kind_of_view_keeps_the_buffer(look: str) -> None:
    make: Any = {
        "slice": lambda batch: batch[3:5], "numpy": lambda batch: batch.numpy()[1:],
        "storage": lambda batch: batch.untyped_storage(), "dtype": lambda batch: batch.view(torch.uint8),
    }[look]  # fmt: skip
    with node(Numbers(), slots=2) as made:
        batches = epoch(made.leader, 0, 9)
        kept = [make(next(batches)) for _ in range(2)]
        before = [bytes(each) if look == "storage" else each.tolist() for each in kept]
        with pytest.raises(RunFailed, match="the batch of step 0 is still held, one of 2, and the ring has only 2"):
            next(batches)
        assert [bytes(each) if look == "storage" else each.tolist() for each in kept] == before


def test_what_autograd_saved_is_unchanged_at_the_backward_pass() -> None:
    with node(Numbers(), slots=4) as made:
        weight = torch.ones(1000, requires_grad=True)
        for step, batch in enumerate(epoch(made.leader, 0, 12)):
            inputs = batch.float() if step % 2 else batch.view(torch.int64)
            loss = (weight * inputs).sum()
            del batch, inputs
            weight.grad = None
            loss.backward()
            assert weight.grad is not None
            assert weight.grad.unique().tolist() == [value_of(0, step, 0)]


def test_a_slot_comes_back_when_its_last_view_dies_in_another_thread() -> None:
    import threading

    with node(Numbers(), slots=2) as made:
        batches = epoch(made.leader, 0, 9)
        for step in range(9):
            box = [next(batches)]
            thread = threading.Thread(target=box.clear)
            thread.start()
            thread.join()
            assert step or not box
        assert made.leader.step == 9


def test_a_batch_that_only_a_cycle_of_garbage_refers_to_is_held_by_nobody() -> None:
    with node(Numbers(), slots=2) as made:
        got = []
        for batch in epoch(made.leader, 0, 9):
            cycle: list[Any] = [batch]
            cycle.append(cycle)
            got.append(int(batch[0]))
            del batch, cycle
        assert got == due(0, 0, 9)


def test_a_forked_child_that_drops_its_copy_of_a_batch_gives_no_slot_away() -> None:
    import os

    with node(Numbers(), slots=2) as made:
        batches = epoch(made.leader, 0, 9)
        kept = next(batches)
        child = os.fork()
        if child == 0:
            del kept
            os._exit(0)
        os.waitpid(child, 0)
        free = made.leader.ring.free(0)
        assert not made.leader.ring.semaphores.wait(free, 1.2)
        assert values([kept]) == due(0, 0, 1)


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("steps", range(1, 7))
def test_the_last_batch_of_an_epoch_may_live_on_in_the_next(steps: int, readers: int) -> None:
    with node(Numbers(), slots=4, readers=readers) as made:
        got = []
        for number in range(3):
            for batch in epoch(made.leader, number, steps):
                got.append(int(batch[0]))
        assert got == [value for number in range(3) for value in due(number, 0, steps)]
        del batch


@pytest.mark.timeout(60)
@pytest.mark.parametrize("readers", [1, 2, 3, 4])
@pytest.mark.parametrize("left_at", [1, 3, 5, None])
@pytest.mark.parametrize("kept_at", [None, 0, 2, 3])
def test_an_epoch_may_be_left_while_batches_of_it_are_held(
    readers: int, left_at: int | None, kept_at: int | None
) -> None:
    with node(Numbers(), slots=4 * readers, readers=readers) as made:
        kept: dict[int, Any] = {}
        for number in range(3):
            for step, batch in enumerate(epoch(made.leader, number, 11)):
                assert int(batch.unique()) == value_of(number, step, 0)
                if step == kept_at and number == 0:
                    kept[value_of(number, step, 0)] = batch
                if step == left_at:
                    break
            assert [int(each.unique()) for each in kept.values()] == list(kept)
        del batch


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    readers=st.integers(1, 4), seeds=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=3),
    leaves=st.lists(st.integers(1, 14), min_size=1, max_size=4),
)  # fmt: skip
def test_whatever_ranks_hold_and_wherever_they_leave_each_gets_its_own(
    readers: int, seeds: list[int], leaves: list[int]
) -> None:
    """Each rank keeps what its own dice say, fewer than its share, and drops them in any order."""
    def hold(rank: int) -> Callable[[RingLoader, Any], str]:
        def run(loader: RingLoader, _pipe: Any) -> str:
            dice, kept = random.Random(seeds[rank]), {}
            for number, steps in enumerate(leaves):
                batches = epoch(loader, number, 15)
                for step in range(steps):
                    kept[value_of(number, step, rank)] = next(batches)
                    while len(kept) > 2 or (kept and dice.random() < 0.6):
                        kept.pop(dice.choice(list(kept)))
                    found = {value: int(batch.unique()) for value, batch in kept.items()}
                    assert all(value == is_there for value, is_there in found.items()), found
                del batches
            return "right"

        return run

    with node(Numbers(), ranks=len(seeds), readers=readers, slots=4 * readers) as made:
        others = [made.follow(rank, hold(rank)) for rank in range(1, len(seeds))]
        assert hold(0)(made.leader, None) == "right"
        assert [answer(other) for other in others] == ["right"] * len(others)


@pytest.mark.timeout(60)
def test_one_batch_may_be_kept_for_ever() -> None:
    def keep(loader: RingLoader, _pipe: Any) -> list[int]:
        batches = epoch(loader, 0, 60)
        kept = next(batches)
        return values(batches) + values([kept])

    with node(Numbers(), ranks=2, slots=4) as made:
        other = made.follow(1, keep)
        assert values(epoch(made.leader, 0, 60)) == due(0, 0, 60)
        assert answer(other) == [*due(0, 1, 60, first=1), value_of(0, 0, 1)]


def test_a_rank_that_begins_an_epoch_while_another_still_reads_is_named() -> None:
    def hurry(loader: RingLoader, _pipe: Any) -> Any:
        values([next(epoch(loader, 0, 50))])
        return values(epoch(loader, 1, 50))

    with node(Numbers(), ranks=2, slots=4) as made:
        other = made.follow(1, hurry)
        text = "rank 1 of the node left an epoch that rank 0 still reads, and begins another"
        with pytest.raises(RunFailed, match=text):
            values(epoch(made.leader, 0, 50))
        assert answer(other) == f"RunFailed: {text}"


def test_a_buffer_that_was_let_go_of_is_filled_again_before_another_one() -> None:
    def places(loader: RingLoader, _pipe: Any) -> list[int]:
        found = []
        for batch in epoch(loader, 0, 20):
            found.append(batch.data_ptr())
            del batch
        return found

    # The reader is the slow one: what it filled is let go of long before it fills the next part.
    with node(Numbers(slow=0, pause_s=0.03), ranks=2, slots=6) as made:
        other = made.follow(1, places)
        mine = places(made.leader, None)
        # Each buffer is filled once first: 6 turns.
        assert len(set(mine[6:])) <= 2 and len(set(answer(other)[6:])) <= 2


def test_buffers_that_are_held_are_not_filled_while_others_are() -> None:
    with node(Numbers(), slots=8) as made:
        kept: dict[int, Any] = {}
        for step, batch in enumerate(epoch(made.leader, 0, 60)):
            kept[step] = batch
            del batch
            for late in [step - 5 if step % 3 else step, step - 6]:  # let go of some at once, of others later
                kept.pop(late, None)
            assert [int(held.unique()) for held in kept.values()] == [value_of(0, at, 0) for at in kept]


def test_writing_to_a_batch_reaches_no_other_rank_and_no_later_batch() -> None:
    with node(Numbers(), ranks=2, slots=2) as made:
        other = made.follow(1, read_epochs(9))
        got = []
        for batch in epoch(made.leader, 0, 9):
            got.append(int(batch[0]))
            batch.fill_(-1)
            del batch
        assert got == due(0, 0, 9)
        assert answer(other) == [due(0, 1, 9)]


def test_views_outlive_the_ring() -> None:
    with node(Numbers()) as made:
        batches = epoch(made.leader, 0, 4)
        kept = next(batches)
        made.leader.close()
        del batches
    assert values([kept]) == due(0, 0, 1)
    wait_for(lambda: all(not reader.is_alive() for reader in made.readers), "readers gone")

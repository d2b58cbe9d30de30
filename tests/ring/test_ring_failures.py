"""An error or a death of a reader or a rank ends all ranks of the node within 5 s, with the cause."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from rings import (
    ENDS_WITHIN_S,
    FORK,
    Node,
    Numbers,
    answer,
    due,
    epoch,
    is_gone,
    kill_self,
    lead,
    node,
    read_epochs,
    values,
    wait_for,
)

from shardlab.errors import RunFailed
from shardlab.ring.loader import RingLoader


def fail_at_step_5(step: int, rank: int) -> None:
    if step == 5:
        raise ValueError("this sample is rotten")


def die_at_step_5(step: int, rank: int) -> None:
    if step == 5:
        kill_self()


def read_for_ever(loader: RingLoader, pipe: Connection) -> Any:
    batches = epoch(loader, 0, 1 << 40)
    next(batches)
    pipe.send("begun")
    for batch in batches:
        del batch


@pytest.mark.parametrize("readers", [1, 3])
def test_an_error_of_a_reader_reaches_all_ranks_in_its_own_words_and_with_its_place(readers: int) -> None:
    with node(Numbers(trouble=fail_at_step_5), ranks=2, readers=readers, slots=6) as made:
        other = made.follow(1, read_epochs(40))
        started = time.monotonic()
        with pytest.raises(RunFailed) as raised:
            values(epoch(made.leader, 0, 40))
        said = answer(other)
        assert time.monotonic() - started < ENDS_WITHIN_S
        text = str(raised.value)
        assert f"reader {5 % readers} of the ring failed: ValueError: this sample is rotten" in text
        assert re.search(r"test_ring_failures\.py:\d+ in fail_at_step_5\)$", text)
        assert said == f"RunFailed: {text}"


def test_all_that_was_filled_before_an_error_may_be_lost_but_nothing_wrong_comes() -> None:
    with node(Numbers(trouble=fail_at_step_5), slots=2) as made:
        got = []
        with pytest.raises(RunFailed, match="rotten"):
            for batch in epoch(made.leader, 0, 40):
                got.append(int(batch[0]))
                del batch
        assert got == due(0, 0, 5)[: len(got)]


def test_a_failed_ring_says_the_same_again_and_closes() -> None:
    with node(Numbers(trouble=fail_at_step_5)) as made:
        batches = epoch(made.leader, 0, 40)
        for again in (lambda: values(batches), lambda: next(batches), lambda: epoch(made.leader, 1, 9)):
            with pytest.raises(RunFailed, match="this sample is rotten"):
                again()
        readers = made.readers
        made.leader.close()
        assert not any(reader.is_alive() for reader in readers)


def test_the_death_of_a_reader_reaches_a_rank_that_waits_while_the_leader_does_something_else() -> None:
    with node(Numbers(trouble=die_at_step_5), ranks=2) as made:
        other = made.follow(1, read_epochs(40))
        started = time.monotonic()
        batches = epoch(made.leader, 0, 40)
        for _ in range(5):
            next(batches)
        said = answer(other, ENDS_WITHIN_S)  # the leader never asks for another batch
        assert time.monotonic() - started < ENDS_WITHIN_S
        assert said == "RunFailed: reader 0 of the ring died (exit code -9)"
        with pytest.raises(RunFailed, match=r"reader 0 of the ring died \(exit code -9\)"):
            next(batches)


def test_the_death_of_a_rank_ends_the_others_with_its_name() -> None:
    with node(Numbers(), ranks=3) as made:
        dying, other = made.follow(1, read_for_ever), made.follow(2, read_for_ever)
        batches = epoch(made.leader, 0, 1 << 40)
        for pipe in (dying, other):
            assert answer(pipe) == "begun"
        values(next(batches) for _ in range(20))
        made.ranks[0].kill()
        started = time.monotonic()
        text = f"rank 1 of the node (process {made.ranks[0].pid}) died in the middle of an epoch"
        with pytest.raises(RunFailed, match=re.escape(text)):
            values(batches)
        assert answer(other) == f"RunFailed: {text}"
        assert time.monotonic() - started < ENDS_WITHIN_S


def lead_apart(pipe: Connection, method: str) -> None:
    forkserver._forkserver.__init__()  # a server that the test process has is no child of this one
    handle, shape, leader = lead(Numbers(), 2, 2, 4, method)
    assert leader.crew is not None
    pipe.send((handle, shape, [process.pid for process in leader.crew.processes]))
    for batch in epoch(leader, 0, 1 << 40):
        del batch


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_death_of_the_leading_rank_ends_the_others_and_all_readers(method: str) -> None:
    ours, theirs = FORK.Pipe()
    leading = FORK.Process(target=lead_apart, args=(theirs, method))
    leading.start()
    handle, shape, readers = answer(ours, 60)
    made = Node(handle, shape, None)  # type: ignore[arg-type]
    other = made.follow(1, read_for_ever)
    try:
        assert answer(other, 60) == "begun"
        leading.kill()
        leading.join()
        started = time.monotonic()
        wait_for(lambda: all(map(is_gone, readers)), "readers gone", ENDS_WITHIN_S)
        text = f"RunFailed: rank 0 of the node (process {leading.pid}) died in the middle of an epoch"
        assert answer(other, ENDS_WITHIN_S) == text
        assert time.monotonic() - started < ENDS_WITHIN_S
    finally:
        for process in (leading, *made.ranks):
            process.kill()
            process.join()


def test_a_rank_that_leaves_in_the_middle_does_not_let_the_others_wait() -> None:
    def leave(loader: RingLoader, _pipe: Connection) -> str:
        batches = epoch(loader, 0, 40)
        for _ in range(3):
            next(batches)
        loader.close()
        return "left"

    with node(Numbers(), ranks=2) as made:
        other = made.follow(1, leave)
        with pytest.raises(RunFailed, match="rank 1 of the node left the ring, and the others wait for it"):
            values(epoch(made.leader, 0, 40))
        assert answer(other) == "left"


def test_a_rank_that_is_through_may_leave_while_the_others_still_read_slowly() -> None:
    def pause(loader: RingLoader, pipe: Connection) -> list[int]:
        batches = epoch(loader, 0, 4)
        pipe.recv()
        return values(batches)

    with node(Numbers(), ranks=2) as made:
        other = made.follow(1, pause)
        values(epoch(made.leader, 0, 4))
        made.leader.close()
        other.send("go on")
        assert answer(other) == due(0, 1, 4)


def test_a_rank_that_begins_an_epoch_alone_is_told_who_left() -> None:
    with node(Numbers(), ranks=2) as made:
        other = made.follow(1, read_epochs(4))
        assert values(epoch(made.leader, 0, 4)) == due(0, 0, 4)
        assert answer(other) == [due(0, 1, 4)]
        made.ranks[0].join()
        with pytest.raises(RunFailed, match="rank 1 of the node left the ring"):
            epoch(made.leader, 1, 4)


def test_a_closed_ring_says_so() -> None:
    with node(Numbers()) as made:
        batches = epoch(made.leader, 0, 40)
        next(batches)
        made.leader.close()
        for again in (lambda: next(batches), lambda: epoch(made.leader, 1, 4)):
            with pytest.raises(RunFailed, match="this ring is closed"):
                again()
        made.leader.close()


def test_an_iterator_of_an_earlier_epoch_does_not_take_from_the_next() -> None:
    with node(Numbers()) as made:
        earlier = epoch(made.leader, 0, 9)
        next(earlier)
        later = epoch(made.leader, 1, 9)
        with pytest.raises(RunFailed, match="another epoch of this ring has begun since"):
            next(earlier)
        assert values(later) == due(1, 0, 9)


@pytest.mark.parametrize("ignores", [False, True])
def test_closing_ends_readers_that_hang(ignores: bool) -> None:
    def hang(step: int, rank: int) -> None:
        if step == 2:
            if ignores:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)

    with node(Numbers(trouble=hang)) as made:
        batches = epoch(made.leader, 0, 9)
        values(next(batches) for _ in range(2))
        readers = [reader.pid for reader in made.readers]
        started = time.monotonic()
        made.leader.close()
        assert all(map(is_gone, readers))
        assert time.monotonic() - started < ENDS_WITHIN_S


def test_a_loader_that_is_dropped_ends_its_readers() -> None:
    _handle, _shape, leader = lead(Numbers(), 1, 2, 4)
    assert leader.crew is not None
    readers = [reader.pid for reader in leader.crew.processes]
    values(epoch(leader, 0, 4))
    del leader
    wait_for(lambda: all(map(is_gone, readers)), "readers gone", ENDS_WITHIN_S)


FORGETS = """
import sys
from rings import Numbers, epoch, lead, values
if __name__ == "__main__":
    _, _, leader = lead(Numbers(), 1, 2, 4)
    print(*[reader.pid for reader in leader.crew.processes], flush=True)
    batches = epoch(leader, 0, 40)
    next(batches)
    {end}
"""


@pytest.mark.parametrize(
    "end", ["pass", "raise ValueError('mine')", "sys.exit(3)", "__import__('os')._exit(0)"]
)
def test_a_script_that_ends_without_closing_ends_within_5_s_and_leaves_no_reader(
    end: str, tmp_path: Path
) -> None:
    script = tmp_path / "forgets.py"
    script.write_text(FORGETS.format(end=end))
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": here},
    )  # fmt: skip
    assert process.stdout is not None
    readers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(readers) == 2
    _, said = process.communicate(timeout=60)
    wait_for(lambda: all(map(is_gone, readers)), "readers gone", ENDS_WITHIN_S)
    assert ("ValueError: mine" in said) == ("ValueError" in end)
    assert process.returncode == {"p": 0, "r": 1, "s": 3, "_": 0}[end[0]]

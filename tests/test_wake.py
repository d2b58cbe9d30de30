"""Semaphores in shared memory: processes wait asleep, are woken once for each post, and see what was written."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardlab.wake import STRIDE, Semaphores

COUNT = 4
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def memory() -> NDArray[np.uint8]:
    """A page that forked processes share."""
    return np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)


@pytest.fixture
def semaphores(memory: NDArray[np.uint8]) -> Semaphores:
    made = Semaphores(memory[: COUNT * STRIDE], COUNT)
    made.reset()
    return made


def test_each_post_lets_one_wait_pass(semaphores: Semaphores) -> None:
    for _ in range(3):
        semaphores.post(1)
    assert [semaphores.wait(1, 0) for _ in range(5)] == [True, True, True, False, False]


def test_semaphores_are_apart(semaphores: Semaphores) -> None:
    semaphores.post(0)
    semaphores.post(3)
    assert [semaphores.wait(number, 0) for number in range(COUNT)] == [True, False, False, True]


def test_they_begin_at_the_values_that_were_asked_for(memory: NDArray[np.uint8]) -> None:
    memory[:] = 0xFF
    made = Semaphores(memory, COUNT)
    made.reset({2: 2})
    assert [made.wait(2, 0) for _ in range(3)] == [True, True, False]
    assert not any(made.wait(number, 0) for number in (0, 1, 3))


@pytest.mark.parametrize("timeout_s", [0.0, 0.05, 0.3])
def test_a_wait_in_vain_takes_its_time_and_no_less(semaphores: Semaphores, timeout_s: float) -> None:
    started = time.monotonic()
    assert not semaphores.wait(0, timeout_s)
    assert time.monotonic() - started >= timeout_s


def ping(semaphores: Semaphores, words: NDArray[np.int64], rounds: int) -> None:
    for number in range(rounds):
        assert semaphores.wait(0, 20)
        words[1] = words[0] + number
        semaphores.post(1)


def test_what_was_written_before_a_post_is_seen_after_the_wait(memory: NDArray[np.uint8]) -> None:
    made = Semaphores(memory[: COUNT * STRIDE], COUNT)
    made.reset()
    words = memory[COUNT * STRIDE :][:16].view(np.int64)
    rounds = 2000
    other = FORK.Process(target=ping, args=(made, words, rounds))
    other.start()
    for number in range(rounds):
        words[0] = 7 * number
        made.post(0)
        assert made.wait(1, 20)
        assert words[1] == 8 * number
    other.join(20)
    assert other.exitcode == 0


def take_all(semaphores: Semaphores, pipe: Any) -> None:
    taken = 0
    while semaphores.wait(0, 2.0):
        taken += 1
    pipe.send(taken)


def test_posts_are_shared_out_among_processes_and_none_is_lost(semaphores: Semaphores) -> None:
    ours, theirs = FORK.Pipe(duplex=False)
    takers = [FORK.Process(target=take_all, args=(semaphores, theirs)) for _ in range(3)]
    for taker in takers:
        taker.start()
    for _ in range(3000):
        semaphores.post(0)
    assert sum(ours.recv() for _ in takers) == 3000
    for taker in takers:
        taker.join()


def test_other_threads_run_while_one_waits(semaphores: Semaphores) -> None:
    threading.Timer(0.05, semaphores.post, [0]).start()
    assert semaphores.wait(0, 20)


def test_a_signal_is_handled_while_waiting_and_does_not_end_the_wait(semaphores: Semaphores) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: seen.append(number))
    try:
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        threading.Timer(0.2, semaphores.post, [0]).start()
        assert semaphores.wait(0, 20)
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_error_of_a_signals_handler_leaves_the_wait(semaphores: Semaphores) -> None:
    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        with pytest.raises(KeyboardInterrupt):
            semaphores.wait(0, 20)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_who_waits_sleeps_until_it_is_woken(semaphores: Semaphores) -> None:
    waiting = threading.Thread(target=semaphores.wait, args=(0, 60.0))
    waiting.start()
    status = Path(f"/proc/self/task/{waiting.native_id}/status")
    time.sleep(0.2)  # until it has fallen asleep, most likely
    before = sleeps(status)
    time.sleep(0.3)
    assert sleeps(status) - before <= 1  # a loop that polls falls asleep again and again
    semaphores.post(0)
    waiting.join()


def sleeps(status: Path) -> int:
    """How often a thread fell asleep."""
    return int(status.read_text().partition("voluntary_ctxt_switches:")[2].split()[0])

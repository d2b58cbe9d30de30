"""Four ranks, of which one loads twice as long: what each of them sees alone, and what all see in step."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

RANKS, STEPS = 4, 100
LOAD_S = COMPUTE_S = 0.005


@dataclass(frozen=True)
class Utilisation:
    """Computing over all time, the mean of the ranks. ``expected``: from the seconds that were asked for."""

    name: str
    ranks: int
    steps: int
    utilisation_ratio: float
    expected_ratio: float
    source: str


def utilisations() -> Iterator[Utilisation]:
    """Without a barrier, as DLIO has it, and with one in each step, as averaging gradients is."""
    alone, held_up = COMPUTE_S / (LOAD_S + COMPUTE_S), COMPUTE_S / (2 * LOAD_S + COMPUTE_S)
    dlio = "DLIO's accelerator utilisation, https://github.com/argonne-lcf/dlio_benchmark: no communication"
    local_mean = (alone * (RANKS - 1) + held_up) / RANKS
    yield Utilisation("each for itself", RANKS, STEPS, utilisation(None), local_mean, dlio)
    in_step = utilisation(threading.Barrier(RANKS))
    yield Utilisation("a barrier in each step", RANKS, STEPS, in_step, held_up, "")


def utilisation(barrier: threading.Barrier | None) -> float:
    """The mean over ranks. They load and compute asleep: what is measured is who waits for whom, not a processor."""
    ratios: list[float] = []
    ranks = [
        threading.Thread(target=rank, args=(LOAD_S * (2 if number == 0 else 1), barrier, ratios))
        for number in range(RANKS)
    ]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    return sum(ratios) / RANKS


def rank(load_s: float, barrier: threading.Barrier | None, ratios: list[float]) -> None:
    """STEPS steps; adds the part of the time in which it computed."""
    started, computed = time.perf_counter(), 0.0
    for _ in range(STEPS):
        time.sleep(load_s)
        began = time.perf_counter()
        time.sleep(COMPUTE_S)
        computed += time.perf_counter() - began
        if barrier is not None:
            barrier.wait()
    ratios.append(computed / (time.perf_counter() - started))

"""What does a SIGKILL at a random moment leave behind?

Hypothesis: nothing. Whatever dies (launcher, rank, worker, reader, monitor, a servant of multiprocessing, a
process of the control run, all at once), within 5 s of the command's end no process of it lives, and nothing lies
in /dev/shm or the temporary folder; where the launcher itself was killed, the next run sweeps. Result files can be
read and keep the rows that they had. A folder of shards is whole, or refused, and the same command completes it.

How to read the answer: each row is one kill. ``victim`` is drawn from the kinds of processes that there were at
``moment_s``, itself drawn from the start to the usual end of that command. ``left`` names what should not be
there any more, ``wrong`` what else is not as promised; both are empty where all is. The last line printed says how
many of the kills left or broke something, and up to which rate that could be by chance (Clopper-Pearson, 95 %).
What a kill meets depends on the machine, so a seed repeats the draws, not the run. Needs `pip install -e '.[test]'`.

    python experiments/kills_at_random.py [--times 100] [--seed 0] [--only NUMBER]
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from faults.kills import COMMANDS, Command, Kill, Usual, failures, kill_once, start, write_shards
from faults.scene import Scene
from publishing import publish


def main() -> None:
    """Find out how long each command takes, kill, print, write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=100, help="this many kills")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--only", type=int, help="the kill of this number alone")
    options = parser.parse_args()
    numbers = range(options.times) if options.only is None else [options.only]
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        kills = []
        for kill in killed(Path(folder), options.seed, numbers):
            kills.append(kill)
            print(line_of(kill), flush=True)
    if options.only is None:
        publish("kills_at_random.csv", kills)
    bad, times = len(failures(kills)), len(kills)
    print(f"{bad} of {times} kills left or broke something; at 95 % at most {upper_bound(bad, times):.2%}")


def killed(folder: Path, seed: int, numbers: range | list[int]) -> Iterator[Kill]:
    """The kills of these numbers; each draws for itself, so one of them can be repeated alone."""
    usual = Usual(folder / "results", write_shards(folder / "whole"))
    lasts_s = {}
    for number, command in enumerate(COMMANDS):
        lasts_s[command] = usual_end(command, folder / f"usual-{number}", usual)
    for number in numbers:
        draw, attempt, kill = random.Random(f"{seed} {number}"), 0, None
        command = draw.choice(COMMANDS)
        while kill is None:  # it may have ended before the moment came
            attempt += 1
            place = folder / f"kill-{number}-{attempt}"
            place.mkdir()
            kill = kill_once(command, lasts_s[command], draw, place, usual)
        yield kill


def usual_end(command: Command, folder: Path, usual: Usual) -> float:
    """How many seconds the command takes when nothing is killed. Its rows become those that have to stay."""
    folder.mkdir()
    scene = Scene(folder)
    try:
        ended = start(command, scene).wait()
        assert ended.code == 0, ended.err
        if scene.results.exists():
            shutil.copytree(scene.results, usual.results, dirs_exist_ok=True)  # rows of one run are enough
    finally:
        scene.close()
    return ended.seconds


def line_of(kill: Kill) -> str:
    """A kill on one line, and what is not as promised below it."""
    text = f"{kill.victim:18} at {kill.moment_s:5.2f} s -> {kill.status!s:>4} in {kill.end_s:5.2f} s  {kill.command}"
    return "\n     ".join(filter(None, [text, kill.said, kill.left, kill.wrong]))


def upper_bound(bad: int, times: int, confidence: float = 0.95) -> float:
    """One-sided upper limit of a rate (Clopper and Pearson 1934): at it, so few are seen with 1 - confidence.

    >>> round(upper_bound(0, 100), 4)
    0.0295
    """
    low, high = bad / times, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(bad, times, middle) > 1 - confidence else (low, middle)
    return high


def _at_most(bad: int, times: int, rate: float) -> float:
    """Probability of ``bad`` or fewer of ``times``."""
    return math.fsum(math.comb(times, k) * rate**k * (1 - rate) ** (times - k) for k in range(bad + 1))


if __name__ == "__main__":
    main()

"""One SIGKILL at a drawn moment, to a drawn process of a command, and what is not as it should be after it."""

from __future__ import annotations

import filecmp
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from faults.scene import GONE_WITHIN_S, PROFILE, Ended, Run, Scene
from shardlab import shard
from shardlab.errors import ShardlabError
from shardlab.measure import tree
from shardlab.shards.reader import ShardedArrays

RANKS = ("--nproc", "2", "--dataset", "synthetic:16MiB:784", "--quiet")
WRITE = ("synthetic:64MiB:784", "--shard-bytes", "2MiB", "--quiet")
OUT = "out"
EVERYTHING = "everything"
SERVANTS = {
    "shardlab.measure.monitor": "monitor",
    "multiprocessing.resource_tracker": "tracker",
    "multiprocessing.forkserver": "fork server",
}
ENDS_WITHIN_S = 60.0
"""After which a command is called hanging, whatever was killed."""
HANGS = -1000


@dataclass(frozen=True)
class Command:
    """``words`` follow the interpreter's name; run in a scene's folder."""

    name: str
    words: tuple[str, ...]


COMMANDS = (
    *(
        Command(flags, (*PROFILE[1:], *RANKS, *flags.split()))
        for flags in (
            "--sampler keyed",
            "--sampler ring --workers 2",
            "--sampler distributed --store shared --workers 1",
            "--store mmap",
            "--sampler accelerate",
            "--start-method forkserver --workers 1 --worker-start-method forkserver",
        )
    ),
    Command("shardlab.shard", ("-m", "shardlab.shard", WRITE[0], OUT, *WRITE[1:])),
)


@dataclass(frozen=True)
class Kill:
    """``moment_s`` is from the start to the kill, ``end_s`` from there to the command's end.

    ``left`` and ``wrong`` are empty where all is as promised.
    """

    command: str
    victim: str
    moment_s: float
    status: int | None
    end_s: float
    said: str
    left: str
    wrong: str


@dataclass(frozen=True)
class Usual:
    """What is there when nothing is killed: a folder of results, and one of shards."""

    results: Path
    shards: Path


def write_shards(folder: Path) -> Path:
    """What the shard command writes when nobody kills it."""
    shard.run(shard.ShardConfig(WRITE[0], str(folder), shard_bytes=WRITE[2]))
    return folder


def start(command: Command, scene: Scene) -> Run:
    """The command in its scene."""
    return scene.start(command=(sys.executable, *command.words))


def kill_once(
    command: Command, within_s: float, draw: random.Random, folder: Path, usual: Usual
) -> Kill | None:
    """Start the command, kill at a moment of ``within_s`` seconds, and look; None where it had ended by then."""
    scene = Scene(folder)
    try:
        if usual.results is not None:
            shutil.copytree(usual.results, scene.results)
        run = start(command, scene)
        if ends_within(run, draw.uniform(0, within_s)):
            return None
        victim = strike(scene, run, draw)
        moment_s = time.monotonic() - run.started
        ended = end_of(run)
        if victim in ("launcher", EVERYTHING) and ended.code >= 0:
            return None  # it ended while its processes were looked for
        left = what_is_left(scene, of_launcher=victim in ("launcher", EVERYTHING))
        wrong = [*wrong_end(victim, ended), *wrong_rows(scene, usual.results)]
        if OUT in command.words:
            wrong += wrong_shards(command, scene, usual.shards)
        said = ended.said[-1] if ended.said else ""
        times = round(moment_s, 3), round(ended.seconds - moment_s, 3)
        return Kill(
            command.name, victim, times[0], ended.code, times[1], said, str(left or ""), "; ".join(wrong)
        )
    finally:
        scene.close()


def ends_within(run: Run, seconds: float) -> bool:
    """Let so much time pass; True where the command ended before."""
    try:
        run.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def end_of(run: Run) -> Ended:
    """The end of it, with a code of its own for a command that hangs."""
    try:
        return run.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        return Ended(HANGS, "", "it hangs", time.monotonic() - run.started)


def strike(scene: Scene, run: Run, draw: random.Random) -> str:
    """Kill a process of a kind that there is now, or all at once; which kind it was."""
    found: dict[str, list[int]] = {}
    for pid, role in roles(run.pid, scene.processes()).items():
        found.setdefault(role, []).append(pid)
    found[EVERYTHING] = [pid for pids in found.values() for pid in pids]
    victim = draw.choice(sorted(found))
    for pid in found[victim] if victim == EVERYTHING else [draw.choice(found[victim])]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return victim


def roles(launcher: int, commands: Mapping[int, str]) -> dict[int, str]:
    """What each living process of a run is.

    ::

        launcher
        |- monitor, tracker (of multiprocessing), fork server, helper (any program)
        |- rank
        |  '- worker (or a reader of the ring), maybe by a fork server
        '- control
           '- control's monitor, control's rank, ...
    """
    found = {launcher: "launcher"}
    for pid, stat in tree.descendants([launcher]).items():
        if pid != launcher and pid in commands:
            found[pid] = _role(commands[pid], found.get(stat.ppid, "helper"))
    return found


def _role(command: str, parent: str) -> str:
    whose = "control's " if parent.startswith("control") else ""
    for sign, role in SERVANTS.items():
        if sign in command and not parent.endswith(role):  # what a fork server forks has its command line
            return f"{whose}{role}"
    if parent.endswith("rank"):
        return f"{whose}worker"
    if "-m shardlab.profile" in command:
        return "control"
    return f"{whose}rank" if "multiprocessing" in command else f"{whose}helper"


def what_is_left(scene: Scene, *, of_launcher: bool) -> dict[str, object]:
    """What should not be there any more; where the launcher was killed, after the next run has swept."""
    if of_launcher and not (left := _settled(scene, "processes")):
        scene.run("--dataset", "synthetic:n=0:8", "--nproc", "1", "--quiet")
    elif of_launcher:
        return left
    return _settled(scene)


def _settled(scene: Scene, *kinds: str) -> dict[str, object]:
    """What is left of these kinds, or of all, when the promised time is over; empty as soon as nothing is."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while True:
        left = scene.left_behind()
        left = {kind: what for kind, what in left.items() if not kinds or kind in kinds}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def wrong_end(victim: str, ended: Ended) -> Iterator[str]:
    """An end that is not one of those promised."""
    killed = victim in ("launcher", EVERYTHING)
    if ended.code not in ((-signal.SIGKILL,) if killed else (0, 1)):
        yield f"exit code {ended.code}"
    if victim.endswith("tracker"):
        return  # Python starts another one, which complains of semaphores that it was never told of
    if "Traceback" in ended.err:
        yield f"a traceback: {ended.err}"
    if ended.code == 1 and (len(ended.said) != 1 or not ended.said[0].startswith("shardlab: ")):
        yield f"no single message: {ended.err}"


def wrong_rows(scene: Scene, before: Path | None) -> Iterator[str]:
    """Results that pandas cannot read, or that lack a row that was there."""
    for file in sorted(scene.results.glob("*")):
        if file.suffix == ".csv":
            try:
                pd.read_csv(file)
            except ValueError as error:
                yield f"{file.name}: {error}"
        elif file.suffix != ".torn":
            yield f"{file.name} in the results"
    for file in before.iterdir() if before is not None else ():
        if not (scene.results / file.name).read_bytes().startswith(file.read_bytes()):
            yield f"rows of {file.name} are lost"


def wrong_shards(command: Command, scene: Scene, whole: Path) -> Iterator[str]:
    """A folder that is neither whole nor refused, or that the same command does not complete."""
    out = scene.folder / OUT
    try:
        data = ShardedArrays(out)
        for index in range(len(data)):
            data[index]  # a shard's checksum is verified before its first sample
        if len(data) != len(ShardedArrays(whole)):
            yield f"{len(data)} samples can be read"
    except ShardlabError as error:
        if "manifest.json" not in str(error):
            yield f"refused with {error}"
    again = scene.run(command=(sys.executable, *command.words))
    done_before = again.code == 2 and "new or an empty folder" in again.err
    if again.code != 0 and not done_before:
        yield f"the same command again: {again.err}"
    same, _, _ = filecmp.cmpfiles(out, whole, names(whole), shallow=False)
    if not names(out) == names(whole) == sorted(same):
        yield f"not what an uninterrupted write leaves: {names(out)}, of which {len(same)} are the same"


def names(folder: Path) -> list[str]:
    """Of its files."""
    return sorted(path.name for path in folder.iterdir())


def failures(kills: Iterable[Kill]) -> list[Kill]:
    """Those after which something was not as promised."""
    return [kill for kill in kills if kill.left or kill.wrong]

"""What a dataset is and what one copy of it weighs, found out in a process that is thrown away.

Sizing Python objects touches them: in a process that shares them by fork it would make the very copies
that are to be counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from shardlab import dataset
from shardlab.dataset import DatasetFacts, DatasetSpec
from shardlab.engine import lifeline
from shardlab.errors import RunFailed, ShardlabError, UsageError
from shardlab.process import die_with_parent
from shardlab.world import without_rendezvous


def facts_of(spec: DatasetSpec, run_dir: Path, timeout_s: float) -> DatasetFacts:
    """Facts of a dataset; builds it once, elsewhere, where its kind cannot tell them from name or files."""
    known = dataset.facts_without_building(spec)
    facts = known if known is not None else _in_throw_away_process(spec, run_dir, timeout_s)
    if facts.samples == 0:
        raise UsageError("the dataset must hold at least one sample", f"{spec.text} with 0 samples")
    return facts


def _in_throw_away_process(spec: DatasetSpec, run_dir: Path, timeout_s: float) -> DatasetFacts:
    out = run_dir / "facts.json"
    (run_dir / "spec.json").write_bytes(msgspec.json.encode(spec))
    try:
        code = _exit_code(run_dir, timeout_s)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"building {spec.text} did not end within --timeout {timeout_s:.0f} s") from None
    if out.exists():
        return msgspec.json.decode(out.read_bytes(), type=DatasetFacts)
    failures = lifeline.read_failures(run_dir)
    if not failures:
        raise RunFailed(
            f"the process that builds {spec.text} to size it ended with {code}" + _killed_hint(code)
        )
    failure = failures[0]
    (run_dir / f"failure-{failure.rank}.json").unlink()
    if failure.expected:
        error = ShardlabError(failure.message)
        error.exit_code = type(error.exit_code)(failure.exit_code)
        raise error
    raise RunFailed(describe_failure(f"building {spec.text} failed", failure))


def _exit_code(run_dir: Path, timeout_s: float) -> int:
    """Of the process; whatever ends the waiting ends it too. Until it has imported all it sleeps through Ctrl-C."""
    command = [sys.executable, "-m", "shardlab.launch.probe", str(run_dir)]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, env=without_rendezvous(os.environ), stdout=sys.stderr)
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        raise
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return process.wait(timeout_s)
    except BaseException:
        process.kill()
        process.wait()
        raise


def describe_failure(what: str, failure: lifeline.Failure) -> str:
    """``what: ValueError: message (file:line in function)``."""
    where = f" ({failure.where})" if failure.where else ""
    return f"{what}: {failure.kind}: {failure.message}{where}"


def _killed_hint(code: int) -> str:
    return " (killed: most likely the memory limit)" if code == -9 else ""


def main(run_dir: str) -> None:
    """The throw-away process."""
    die_with_parent()
    lifeline.leave_quietly_on_signals()
    folder = Path(run_dir)
    spec = msgspec.json.decode((folder / "spec.json").read_bytes(), type=DatasetSpec)
    try:
        facts = dataset.measure(spec)
    except Exception as error:
        os._exit(lifeline.write_failure(folder, 0, error).exit_code)
    partial = folder / "facts.partial"
    partial.write_bytes(msgspec.json.encode(facts))
    partial.rename(folder / "facts.json")
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])

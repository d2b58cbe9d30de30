"""The command: one line when it is done, an exit code and the cure when it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shardlab.dataset import DatasetSpec, open_dataset
from shardlab.shard import main
from shardlab.shards.reader import ShardedArrays


def test_a_dataset_is_written_and_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    source = "synthetic:n=23:7"
    assert main([source, out, "--samples-per-shard", "10", "--seed", "5"]) == 0
    printed = capsys.readouterr()
    size = sum(path.stat().st_size for path in Path(out).glob("*.safetensors"))
    assert printed.out == f"23 samples in 3 shards of {size} bytes in {out}\n"
    assert printed.err == ""
    expected = torch.stack(list(open_dataset(DatasetSpec(source, seed=5))))  # type: ignore[call-overload]
    assert torch.equal(torch.stack(list(ShardedArrays(out))), expected)
    assert ShardedArrays(out).manifest.source == source


def test_shards_can_be_written_again_as_other_shards(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert main(["synthetic:n=23:7", first, "--shard-bytes", "70"]) == 0
    assert main([first, second, "--shard-bytes", "1KiB"]) == 0
    assert len(ShardedArrays(first).manifest.shards) == 3
    assert len(ShardedArrays(second).manifest.shards) == 1
    before, after = (ShardedArrays(out).in_memory() for out in (first, second))
    assert torch.equal(before, after)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nonsense", "OUT"], "--dataset must name a dataset"),
        (["synthetic:0", "OUT"], "must have samples"),
        (["records:5", "OUT"], "list in field 'bbox'"),
        (["synthetic:n=5:7", "OUT", "--samples-per-shard", "0"], "at least 1"),
        (["synthetic:n=5:7", "OUT", "--shard-bytes", "big"], "--shard-bytes"),
        (["synthetic:n=5", "OUT", "--shard-bytes", "1MiB", "--samples-per-shard", "2"], "exclude each other"),
        (["synthetic:n=5:7", "OUT", "--seed", "-1"], "--seed"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "out") if word == "OUT" else word for word in arguments]) == 2
    printed = capsys.readouterr()
    assert why in printed.err
    assert printed.out == ""


def test_damaged_source_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    assert main(["synthetic:n=5:7", str(source)]) == 0
    (source / "shard-00000.safetensors").unlink()
    assert main([str(source), str(tmp_path / "out")]) == 1
    assert "shard-00000.safetensors is missing" in capsys.readouterr().err


def test_unknown_flags_exit_with_2() -> None:
    command = [sys.executable, "-m", "shardlab.shard", "--nonsense"]
    assert subprocess.run(command, capture_output=True).returncode == 2

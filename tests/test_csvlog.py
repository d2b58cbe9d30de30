"""Rows survive: several writers, killed writers, full disks, other columns, file systems without locks."""

from __future__ import annotations

import csv
import errno
import fcntl
import math
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from full_disk import file_size_limit
from shardlab import csvlog, filelock
from shardlab.csvlog import append, check_writable, read_rows
from shardlab.errors import RunFailed, UsageError
from shardlab.world import host_name


@dataclass(frozen=True)
class Row:
    who: Any
    n: Any = 0


def written(folder: Path, value: Any) -> str:
    """What the file holds for a value, read by Python's own reader."""
    append(folder, "one.csv", [Row(value)])
    with (folder / "one.csv").open(newline="") as file:
        return list(csv.reader(file))[-1][0]


def test_rows_of_several_calls_are_under_one_header(tmp_path: Path) -> None:
    append(tmp_path, "runs.csv", [Row("a", 1)])
    append(tmp_path, "runs.csv", [Row("b", 2), Row("c", 3)])
    assert (tmp_path / "runs.csv").read_text() == "who,n\na,1\nb,2\nc,3\n"


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    append(tmp_path, "runs.csv", [])
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_created(tmp_path: Path) -> None:
    append(tmp_path / "a" / "b", "runs.csv", [Row("a")])
    assert read_rows(tmp_path / "a" / "b" / "runs.csv") == [{"who": "a", "n": "0"}]


def test_a_name_without_csv_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.csv"):
        append(tmp_path, "runs", [Row("a")])


def test_rows_of_two_kinds_are_a_bug(tmp_path: Path) -> None:
    other = make_dataclass("Other", [("x", int)])
    with pytest.raises(ValueError, match="columns"):
        append(tmp_path, "runs.csv", [Row("a"), other(1)])
    assert not (tmp_path / "runs.csv").exists()


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, ""),
        ("", ""),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-7, "-7"),
        (2**64, "18446744073709551616"),
        (0.1, "0.1"),
        (-0.5, "-0.5"),
        (1e-300, "1e-300"),
        (math.inf, "inf"),
        ("two\nlines", "two lines"),
        ("dos\r\nline", "dos line"),
        ("mac\rline", "mac line"),
        ("nul\0", "nul "),
        ('say "x", twice', 'say "x", twice'),
        ("Grüße", "Grüße"),
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("@sum", "'@sum"),
        ("-m shardlab", "-m shardlab"),
    ],
)
def test_cells(tmp_path: Path, value: Any, cell: str) -> None:
    assert written(tmp_path, value) == cell


def test_numpy_numbers_are_written_as_numbers(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    assert written(tmp_path, np.float64(0.5)) == "0.5"
    assert written(tmp_path, np.int64(5)) == "5"


def test_bytes_of_argv_that_are_no_text_do_not_stop_the_row(tmp_path: Path) -> None:
    assert "x" in written(tmp_path, os.fsdecode(b"x\xff"))


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_floats_read_back_exactly(values: list[float]) -> None:
    with TemporaryDirectory() as folder:
        append(Path(folder), "runs.csv", [Row(value) for value in values])
        assert [float(row["who"]) for row in read_rows(Path(folder) / "runs.csv")] == values


@given(st.lists(st.text(), min_size=1))
def test_every_row_is_one_line(texts: list[str]) -> None:
    with TemporaryDirectory() as folder:
        append(Path(folder), "runs.csv", [Row(text) for text in texts])
        content = (Path(folder) / "runs.csv").read_bytes()
        assert content.count(b"\n") == 1 + len(texts) == 1 + len(read_rows(Path(folder) / "runs.csv"))
        assert b"\r" not in content


def test_a_torn_row_is_cut_off_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("who,n\na,1\nb,")
    append(tmp_path, "runs.csv", [Row("c", 3)])
    assert file.read_text() == "who,n\na,1\nc,3\n"
    assert (tmp_path / "runs.csv.torn").read_text() == "b,\n"
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "runs.csv.torn" in told.err


def test_torn_rows_of_several_deaths_are_all_kept(tmp_path: Path) -> None:
    for torn in ("b,", "c"):
        append(tmp_path, "runs.csv", [Row("a")])
        with (tmp_path / "runs.csv").open("a") as file:
            file.write(torn)
    append(tmp_path, "runs.csv", [Row("a")])
    assert (tmp_path / "runs.csv.torn").read_text() == "b,\nc\n"
    assert len(read_rows(tmp_path / "runs.csv")) == 3


def test_a_torn_header_starts_the_file_again(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("wh")
    append(tmp_path, "runs.csv", [Row("a", 1)])
    assert (tmp_path / "runs.csv").read_text() == "who,n\na,1\n"
    assert (tmp_path / "runs.csv.torn").read_text() == "wh\n"


def test_a_reader_leaves_out_the_row_being_written(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("who,n\na,1\nb,")
    assert read_rows(tmp_path / "runs.csv") == [{"who": "a", "n": "1"}]


def test_no_file_reads_as_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "runs.csv") == []


def test_other_columns_start_a_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_dataclass("Other", [("x", int)])
    append(tmp_path, "runs.csv", [Row("a", 1)])
    append(tmp_path, "runs.csv", [other(5)])
    append(tmp_path, "runs.csv", [Row("b", 2)])
    assert (tmp_path / "runs.1.csv").read_text() == "who,n\na,1\n"
    assert (tmp_path / "runs.2.csv").read_text() == "x\n5\n"
    assert (tmp_path / "runs.csv").read_text() == "who,n\nb,2\n"
    assert capsys.readouterr().err.count("\n") == 2


def test_a_header_longer_than_one_read_is_found(tmp_path: Path) -> None:
    wide = make_dataclass("Wide", [(f"column_{i}_" + "x" * 100, int) for i in range(1000)])
    for _ in range(2):
        append(tmp_path, "runs.csv", [wide(*range(1000))])
    assert len(read_rows(tmp_path / "runs.csv")) == 2
    assert not (tmp_path / "runs.1.csv").exists()


@pytest.mark.parametrize("room", range(12))
def test_a_write_cut_short_by_the_kernel_leaves_the_earlier_rows(tmp_path: Path, room: int) -> None:
    append(tmp_path, "runs.csv", [Row("a", 1)])
    before = (tmp_path / "runs.csv").read_bytes()
    with file_size_limit(len(before) + room), pytest.raises(RunFailed) as failure:
        append(tmp_path, "runs.csv", [Row("bbbbbb", 2), Row("c", 3)])
    assert (tmp_path / "runs.csv").read_bytes() == before
    for part in ("runs.csv", "13 bytes", os.strerror(errno.EFBIG), "Cure: "):
        assert part in str(failure.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_every_error_of_the_system_is_told_with_a_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(RunFailed, match=rf"{os.strerror(number)}.*Cure: .*--results"):
        append(tmp_path, "runs.csv", [Row("a")])


def test_a_short_write_that_can_go_on_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    append(tmp_path, "runs.csv", [Row("abcdef", 1)])
    assert (tmp_path / "runs.csv").read_text() == "who,n\nabcdef,1\n"


def test_a_folder_that_is_a_file_fails_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(RunFailed, match="taken"):
        append(tmp_path / "taken", "runs.csv", [Row("a")])


def write_many(folder: Path, who: int, rows: int) -> None:
    for n in range(rows):
        append(folder, "ranks.csv", [Row(who, n), Row(who, n)])


def start(target: Any, *args: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


def test_writers_at_once_lose_nothing_and_share_one_header(tmp_path: Path) -> None:
    writers = [start(write_many, tmp_path, who, 25) for who in range(4)]
    for writer in writers:
        writer.join()
    rows = read_rows(tmp_path / "ranks.csv")
    assert sorted((row["who"], row["n"]) for row in rows) == sorted(
        (str(who), str(n)) for who in range(4) for n in range(25) for _ in range(2)
    )
    assert all(first == second for first, second in zip(rows[::2], rows[1::2], strict=True))


def write_kind(folder: Path, column: str, rows: int) -> None:
    kind = make_dataclass("Kind", [(column, int)])
    for n in range(rows):
        append(folder, "ranks.csv", [kind(n)])


def test_writers_with_two_headers_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [start(write_kind, tmp_path, column, 15) for column in "abab"]
    for writer in writers:
        writer.join()
    files = [read_rows(file) for file in tmp_path.glob("ranks*.csv")]
    assert all(len({tuple(row) for row in rows}) == 1 for rows in files)
    for column in "ab":
        found = sorted(int(row[column]) for rows in files for row in rows if column in row)
        assert found == sorted([*range(15), *range(15)])


WRITE_FOREVER = """
import sys
from dataclasses import make_dataclass
from pathlib import Path
from shardlab.csvlog import append

Row = make_dataclass("Row", ["who", "n"])
n = 0
while True:
    append(Path(sys.argv[1]), "runs.csv", [Row("x" * 50, n)] * 20)
    n += 1
    print(flush=True)
"""


def test_rows_of_a_killed_writer_are_whole(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(csvlog.__file__).parents[1])}
    command = [sys.executable, "-c", WRITE_FOREVER, str(tmp_path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert writer.stdout is not None
    for _ in range(5):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    append(tmp_path, "runs.csv", [Row("last", 1)])
    rows = read_rows(tmp_path / "runs.csv")
    assert len(rows) > 100
    assert {row["who"] for row in rows} == {"x" * 50, "last"}


def test_a_file_moved_while_its_lock_is_waited_for_gets_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, "runs.csv", [Row("a", 1)])
    flock, moved = fcntl.flock, tmp_path / "runs.1.csv"

    def flock_after_a_move(fd: int, operation: int) -> None:
        if not moved.exists():
            (tmp_path / "runs.csv").rename(moved)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock_after_a_move)
    append(tmp_path, "runs.csv", [Row("b", 2)])
    assert moved.read_text() == "who,n\na,1\n"
    assert (tmp_path / "runs.csv").read_text() == "who,n\nb,2\n"


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def dead_pid() -> int:
    process = start(int)
    process.join()
    return int(process.pid)


def test_without_flock_writers_at_once_lose_nothing(tmp_path: Path, no_flock: None) -> None:
    writers = [start(write_many, tmp_path, who, 10) for who in range(4)]
    for writer in writers:
        writer.join()
    assert len(read_rows(tmp_path / "ranks.csv")) == 80
    assert [file.name for file in tmp_path.iterdir()] == ["ranks.csv"]


def test_without_flock_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path, no_flock: None) -> None:
    (tmp_path / "runs.csv.lock").write_text(f"{dead_pid()} {host_name()}")
    append(tmp_path, "runs.csv", [Row("a")])
    assert [file.name for file in tmp_path.iterdir()] == ["runs.csv"]


@pytest.mark.parametrize("holder", ["alive here", "on another node", "not named yet"])
def test_without_flock_a_lock_that_may_be_held_is_waited_for(
    tmp_path: Path, no_flock: None, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    lock = {
        "alive here": f"{os.getpid()} {host_name()}",
        "on another node": f"{dead_pid()} another-node",
        "not named yet": "",
    }[holder]
    (tmp_path / "runs.csv.lock").write_text(lock)
    monkeypatch.setattr(filelock, "DEADLINE_S", 0.05)
    with pytest.raises(RunFailed, match=r"remove .*runs\.csv\.lock"):
        append(tmp_path, "runs.csv", [Row("a")])
    assert (tmp_path / "runs.csv.lock").read_text() == lock


def test_a_lock_that_is_never_released_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, "runs.csv", [Row("a")])
    monkeypatch.setattr(filelock, "DEADLINE_S", 0.05)
    with (tmp_path / "runs.csv").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunFailed, match="could not be locked"):
            append(tmp_path, "runs.csv", [Row("b")])
    append(tmp_path, "runs.csv", [Row("c")])
    assert [row["who"] for row in read_rows(tmp_path / "runs.csv")] == ["a", "c"]


def test_a_fork_during_a_write_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = multiprocessing.get_context("fork").Event()
    with filelock.locked(tmp_path / "runs.csv"):
        child = start(go_on.wait)
    monkeypatch.setattr(filelock, "DEADLINE_S", 1.0)
    append(tmp_path, "runs.csv", [Row("a")])
    go_on.set()
    child.join()


def test_check_writable_creates_the_folder_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "results")
    assert list((tmp_path / "new" / "results").iterdir()) == []


def test_check_writable_names_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(UsageError, match=r"--results must .*taken.*Cure: "):
        check_writable(tmp_path / "taken")


def test_check_writable_tries_a_real_write(tmp_path: Path) -> None:
    with file_size_limit(0), pytest.raises(UsageError, match=os.strerror(errno.EFBIG)):
        check_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_check_writable_finds_a_file_of_rows_that_is_closed_to_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranks.csv").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "ranks.csv")
    with pytest.raises(UsageError, match=r"ranks\.csv"):
        check_writable(tmp_path)

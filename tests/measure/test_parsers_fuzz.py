"""What the kernel prints, made up: read back exactly, whatever files are called, and cut anywhere without a crash."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.measure import cgroup, procfs
from shardlab.measure.census import pages

PAGE = os.sysconf("SC_PAGESIZE")


class Made(NamedTuple):
    """A mapping; sizes in kB."""

    pages: int
    gap: int
    inode: int
    path: str
    pss: int
    anonymous: int
    private: int
    shared: int


# the kernel writes a newline in a name as \012, and everything else as it is
ENDS = st.sampled_from("\r\x0b\x0c\x1c\x85\u2028 :")
NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n") | ENDS, max_size=12).map(
    lambda text: f"/{text}" if text.strip() else ""
)
KIB = st.integers(0, 1 << 40)
MADE = st.lists(
    st.builds(Made, st.integers(1, 9), st.integers(0, 3), st.integers(0, 99), NAMES, KIB, KIB, KIB, KIB),
    max_size=6,
)


def smaps(made: list[Made]) -> str:
    """As Linux prints them."""
    text, start = "", 0x7F0000000000
    for one in made:
        start += one.gap * PAGE
        end = start + one.pages * PAGE
        text += (
            f"{start:x}-{end:x} rw-p 00001000 fe:01 {one.inode} {' ' * 9}{one.path}\n"
            f"Rss: {one.private + one.shared:15} kB\nPss: {one.pss:15} kB\nPss_Dirty: 0 kB\n"
            f"Private_Clean: 0 kB\nPrivate_Dirty: {one.private:8} kB\nAnonymous: {one.anonymous} kB\n"
            "THPeligible: 0\nVmFlags: rd wr mr\n"
        )
        start = end
    return text


@settings(deadline=None)
@given(MADE)
def test_smaps_are_read_back_whatever_files_are_called(made: list[Made]):
    text = smaps(made)
    found = pages.mappings(text)
    assert [(m.end - m.start) // PAGE for m in found] == [one.pages for one in made]
    assert [(m.inode, m.path.strip()) for m in found] == [(one.inode, one.path.strip()) for one in made]
    total = procfs.smaps_rollup(text)
    assert (total.pss_bytes or 0) == sum(one.pss for one in made) * 1024
    assert (total.uss_bytes or 0) == sum(one.private for one in made) * 1024
    named = procfs.smaps_named(text, lambda _: True)
    sums: dict[int, int] = {}
    for one in made:
        if one.path:
            sums[one.inode] = sums.get(one.inode, 0) + one.pss - one.anonymous
    of_inode: dict[int, int] = {}
    for file, size in named.items():
        of_inode[file.inode] = of_inode.get(file.inode, 0) + size
    if len({one.inode for one in made}) == len(made):
        assert of_inode == {inode: max(size, 0) * 1024 for inode, size in sums.items()}
    ratios = pages.shared_ratios(text)
    due = [max(one.pss - one.private, 0) / one.shared for one in made if one.shared]
    assert list(ratios.values()) == due


@settings(deadline=None)
@given(MADE, st.data())
def test_text_that_is_cut_off_is_read_as_far_as_it_goes(made: list[Made], data: st.DataObject):
    text = smaps(made)
    cut = text[: data.draw(st.integers(0, len(text)))]
    before_last = pages.mappings(cut)[:-1]
    assert pages.mappings(text)[: len(before_last)] == before_last
    procfs.smaps_named(cut, lambda _: True)
    pages.shared_ratios(cut)
    assert (procfs.smaps_rollup(cut).pss_bytes or 0) <= (procfs.smaps_rollup(text).pss_bytes or 0)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_is_no_number(text: str):
    assert pages.mappings(text) == [] or "-" in text
    procfs.smaps_named(text, lambda _: True)
    pages.shared_ratios(text)
    procfs.smaps_rollup(text)
    assert cgroup.clean_cache_bytes(text, 1) >= 0 and cgroup.clean_cache_bytes(text, 2) >= 0
    assert procfs.cgroup_bytes(text) is None or text.strip().isdigit()
    procfs.cgroup_paths(text)
    assert procfs.status_signals_caught(text) >= 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(0, 5), st.integers(0, 99))
def test_pages_that_are_there_are_those_with_the_bit(entries: list[int], first: int, inode: int):
    mapping = pages.Mapping(first * PAGE, (first + len(entries)) * PAGE, "rw-p", 3 * PAGE, "fe:01", inode, "")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pagemap")
        file.write_bytes(bytes(8 * first) + np.array(entries, np.uint64).tobytes())
        opened = os.open(file, os.O_RDONLY)
        try:
            found = [
                (n, e)
                for ns, es in pages.resident(opened, mapping, PAGE)
                for n, e in zip(ns, es, strict=True)
            ]
        finally:
            os.close(opened)
    assert [(int(n), int(e)) for n, e in found] == [
        (first + place, entry) for place, entry in enumerate(entries) if entry >> 63
    ]
    if not found:
        return
    numbers, values = (np.array(column, np.uint64) for column in zip(*found, strict=True))
    names = pages.frames(numbers, values, mapping, PAGE, process=1, family=2, file=7)
    for name, number, entry in zip(names.tolist(), numbers.tolist(), values.tolist(), strict=True):
        if entry >> 61 & 1 and inode:
            assert name == int(pages.OF_FILE) | 7 << 40 | (number - first + 3)
        elif entry >> 56 & 1:
            assert name == int(pages.ALONE) | 1 << 48 | number
        else:
            assert name == (entry & (1 << 55) - 1 or int(pages.FORKED) | 2 << 48 | number)

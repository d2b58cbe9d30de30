"""The page: one file that needs nothing else, in which what the data says is text and nothing more."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from results_by_hand import copies, folder, run

from command import code_of
from shardlab import report
from shardlab.analysis import figures, load
from shardlab.errors import UsageError
from shardlab.explain import DICTIONARY, entries
from shardlab.reporting import render, sources, svg
from shardlab.reporting.parts import Page, Section, Table, Text, is_number
from shardlab.reporting.runs_page import MEANINGS, command_line

HOSTILE = '"><img src=x onerror=alert(1)></title></svg><script>alert(2)</script>$\\frac{</style>&amp; \x0b'
SHORT = "<b onclick=x()>$\\frac{"
VOID = {"meta", "img", "path", "use", "image", "link", "br"}


class Outline(HTMLParser):
    """Elements of a page in order, with their attributes, and all text by element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data

    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


def written(results: Path, *flags: str) -> str:
    out = results.parent / "page.html"
    assert code_of(report.main, str(results), "-o", str(out), "--quiet", *flags) == 0
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report on two hostile configurations, twice each, with their ledgers."""
    path = tmp_path_factory.mktemp("report") / "results"
    flags: dict[str, Any] = {"dataset": f"d.py:{HOSTILE}"}
    other = {**flags, "sampler": f"{SHORT}:mine"}
    runs = [run(f"a{n}", flags, **copies(2.0, 1000.0 + n), hostname=HOSTILE) for n in range(2)]
    runs += [run(f"b{n}", other, **copies(1.0, 1000.0 + n), hostname=HOSTILE, argv=HOSTILE) for n in range(2)]
    runs.append(run("c", other, status="failed", reason=f"run: {HOSTILE}", hostname=HOSTILE))
    return written(folder(path, *runs, ledgers=True))


def test_what_the_data_says_is_text(page: str) -> None:
    outline = Outline(page)
    assert outline.open == []
    assert not {"script", "img", "iframe", "object"} & set(outline.tags())
    assert not [name for _, attributes in outline.elements for name in attributes if name.startswith("on")]
    assert f"{SHORT}:mine" in outline.text["text"]  # in a picture
    assert not {"b", "text"} & {tag for tag, attributes in outline.elements if "onclick" in attributes}
    assert '"><img src=x onerror=alert(1)>' in outline.text["li"]
    assert outline.text["title"].startswith("Report on results")


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    outline = Outline(page)
    assert "link" not in outline.tags()
    targets = [value or "" for _, each in outline.elements for name, value in each.items() if name in ("src", "href")]
    assert targets
    assert all(target.startswith(("#", "data:image/png;base64,")) for target in targets)
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": policy}) in outline.elements
    assert "@import" not in page
    assert "url(http" not in page


def test_pictures_have_names_words_and_ids_of_their_own(page: str) -> None:
    outline = Outline(page)
    pictures = [attributes for tag, attributes in outline.elements if tag == "svg"]
    assert len(pictures) >= 8
    ids = [each["id"] for _, each in outline.elements if "id" in each]
    assert len(ids) == len(set(ids))
    for picture in pictures:
        assert picture["role"] == "img"
        assert picture["aria-label"]
        assert picture["aria-describedby"] in ids
    pointed = re.findall(r'(?:url\(#|(?<=\s)href="#)([^)"]+)', page)
    assert set(pointed) <= set(ids)


def test_pictures_take_their_colours_from_the_page(page: str) -> None:
    body = page.partition("</style>")[2]
    assert not re.findall(r"#[0-9a-f]{6}\b", body)
    used = set(re.findall(r"var\((--[a-z0-9]+)\)", body))
    assert {"--text", "--rule", "--c1"} <= used
    assert used <= set(re.findall(r"(--[a-z0-9]+):", page.partition("</style>")[0]))
    assert "DejaVu" not in body
    assert set(figures.PALETTE).isdisjoint(re.findall(r"#[0-9a-fA-F]{6}", body.lower()))


def test_headings_are_in_order_and_the_verdict_follows_the_first(page: str) -> None:
    tags = Outline(page).tags()
    assert [tag for tag in tags if re.fullmatch("h[1-6]", tag)] == ["h1", *["h2"] * 9]
    assert tags[tags.index("h1") + 1] == "ul"
    assert 'lang="en"' in page


def test_the_same_figure_gives_the_same_bytes() -> None:
    def drawn() -> str:
        with svg.style():
            figure, ax = figures.sheet(rows=2)
            ax.barh([0, 1], [1, 0], color="#0072b2", clip_on=True)
        return svg.inline(figure, "f1-", "name", "words", {"#0072b2": "var(--c1)"})

    first = drawn()
    assert first == drawn()
    assert first.count("var(--c1)") == 1  # a bar without a length is not there


def test_what_a_page_of_few_and_old_rows_says(tmp_path: Path) -> None:
    """Of two machines, without some columns of today, without memory, one ledger torn and none of the other."""
    results = folder(tmp_path / "results", run("old", **copies(2.0, 10.0)), run("b", hostname="b"))
    runs = pd.read_csv(results / "runs.csv", dtype=str)
    runs.drop(columns=["comparison", "repeat", "inflight_bytes"]).to_csv(results / "runs.1.csv", index=False)
    (results / "runs.csv").unlink()
    (results / "memory.csv").unlink()
    (results / "ledger").mkdir()
    (results / "ledger" / "old-0.npy").write_bytes(b"torn")
    page = written(results)
    outline = Outline(page)
    assert "holds 2.0 copies of the dataset" in outline.text["li"]
    assert "2 machines" in outline.text["li"]
    assert [each for tag, each in outline.elements if tag == "p" and each.get("class") == "loud"]
    assert "no memory was recorded" in outline.text["p"]
    assert "old-0.npy is no ledger" in page
    assert "machine 2: <code>--keep-ledger</code> keeps them" in page


@pytest.mark.parametrize(
    ("runs", "last", "kept"), [(["b"], None, ["b"]), (None, 2, ["b", "c"]), (None, None, ["a", "b", "c"])]
)
def test_runs_are_chosen_by_name_and_by_age(
    tmp_path: Path, runs: list[str] | None, last: int | None, kept: list[str]
) -> None:
    path = folder(tmp_path / "results", run("a"), run("b"), run("c"))
    chosen = sources.chosen(load(path), path, runs, last)
    assert [list(frame["run_id"].unique()) for frame in (chosen.runs, chosen.nodes, chosen.ranks)] == [kept] * 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--runs", "x"], "--runs must name runs of runs.csv, but got 'x'; choose from a, b"),
        (["--last", "0"], "--last must be at least 1"),
        (["--last", "1", "--runs", "a"], "Cure: give one of them"),
    ],
)
def test_a_wrong_choice_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    results = folder(tmp_path / "results", run("a"), run("b"))
    assert code_of(report.main, str(results), "-o", str(tmp_path / "x.html"), *flags) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_a_folder_without_rows_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "header").mkdir()
    (tmp_path / "header" / "runs.csv").write_text("run_id,started_at\n")
    for name, said in (("none", "that exists"), ("empty", "must hold CSV files"), ("header", "must have rows")):
        assert code_of(report.main, str(tmp_path / name)) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "Cure: measure something first" in error


def test_a_file_of_runs_that_is_not_of_shardlab_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.csv").write_text("run_id,repeat,status,dataset\na,first,ok,mnist\n")
    assert code_of(report.main, str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert "runs.csv must have the columns that shardlab writes" in error
    assert "none named started_at, sampler, store, nproc, framework" in error


def test_rows_of_folders_that_were_merged_count_once(tmp_path: Path) -> None:
    path = folder(tmp_path / "results", run("a"), run("b"))
    for name in ("runs", "nodes", "ranks", "memory"):
        header, *rows = (path / f"{name}.csv").read_text().splitlines(keepends=True)
        (path / f"{name}.csv").write_text("".join([header, *rows, *rows]))
    twice = load(path)
    assert len(twice.runs) == 4
    once = sources.chosen(twice, path, None, None)
    assert list(once.runs["run_id"]) == ["a", "b"]
    assert [len(frame) for frame in (once.nodes, once.ranks, once.memory)] == [2, 4, 12]


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"-o must name a file that can be written .*Cure: name a file"):
        render.write(tmp_path / "no" / "x.html", "new")
    with pytest.raises(UsageError, match="-o must name a file"):
        render.write(tmp_path, "new")
    old = tmp_path / "x.html"
    old.write_text("old")
    with pytest.raises(TypeError):  # in the middle of writing
        render.write(old, None)  # type: ignore[arg-type]
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_a_link_stays_a_link_and_a_page_is_as_readable_as_any_file(tmp_path: Path) -> None:
    target, link = tmp_path / "target.html", tmp_path / "link.html"
    target.write_text("old")
    link.symlink_to(target)
    render.write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    plain = tmp_path / "plain"
    plain.touch()
    assert target.stat().st_mode == plain.stat().st_mode


def test_what_the_report_needs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "NEEDS", ("jinja2", "no_such_library"))
    assert code_of(report.main, str(tmp_path)) == 2
    assert "but got 'no no_such_library'. Cure: pip install -e '.[report]'" in capsys.readouterr().err


def test_numbers_stand_to_the_right_and_short_columns_do_not_break() -> None:
    table = Table.of("t", ("name", "copies", "why"), [("a", "1.0 (0.9 to 1.1)", "x" * 30), ("b", "-", "y")])
    assert [table.look(column) for column in range(3)] == ["tight", "number tight", ""]
    assert all(map(is_number, ("-1.5e-05", "50%", "1,000")))
    assert not any(map(is_number, ("1 wrong", "", "1, 2")))


def test_a_flag_in_a_sentence_is_code_and_stays_escaped() -> None:
    text = "Keep one with --store shared <b>--x</b>"
    html = render.html(Page("t", (text,), "m", (Section("s", (Text(text),)),)))
    assert "<code>--store shared</code> &lt;b&gt;<code>--x</code>&lt;/b&gt;" in html


def test_every_column_of_the_page_is_in_the_dictionary() -> None:
    assert set(MEANINGS.values()) <= set(entries(DICTIONARY.read_text(encoding="utf-8")))


def test_a_command_line_is_as_one_types_it() -> None:
    assert command_line("/opt/shardlab/train.py") == "python -m shardlab.train"
    assert command_line("torchrun -m shardlab.train") == "torchrun -m shardlab.train"

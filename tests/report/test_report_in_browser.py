"""The report as a browser shows it, on a phone and on a desk, by day and by night."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from results_by_hand import copies, folder, run

import browser
from command import code_of
from shardlab import report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.missing() is not None, reason=browser.missing() or ""),
]
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
READABLE = 4.5  # WCAG 2.2, 1.4.3, level AA


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on runs with hostile names, one of them wrong and one failed, and long unbroken words."""
    path = tmp_path_factory.mktemp("browser")
    hostile = {"dataset": f"d.py:{HOSTILE}"}
    wrong = {"status": "audit", "duplicates": 40, "missing": 40}
    runs = [
        run("a", hostile, **copies(2.0, 1000.0)),
        run("b", {**hostile, "sampler": "keyed"}, **copies(1.0, 2000.0), **wrong),
        run("c", {**hostile, "sampler": f"{'x' * 200}:{HOSTILE}"}, status="failed", reason=f"run: {'y' * 300}"),
        run("d", {"dataset": "mnist"}, **copies(1.0, 5.0), hostname=HOSTILE),
    ]
    assert code_of(report.main, str(folder(path, *runs, ledgers=True)), "-o", str(path / "page.html"), "--quiet") == 0
    return path / "page.html"


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser.browser() as running:
        yield running


@pytest.fixture(
    params=[(360, 740, "light"), (360, 740, "dark"), (1280, 900, "light"), (1280, 900, "dark")], ids=str
)
def seen(request: pytest.FixtureRequest, started: Any, page: Path) -> Iterator[browser.Visit]:
    with browser.visit(started, page, *request.param) as visit:
        yield visit


def test_the_page_is_whole_readable_and_quiet(seen: browser.Visit, page: Path) -> None:
    assert seen.requests == [page.resolve().as_uri()]
    assert seen.errors == []
    assert seen.dialogs == []
    width, window = seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= window
    for selector in ("body *:not(svg *):not(svg)", "svg text"):
        contrasts = seen.contrasts(selector)
        assert len(contrasts) > 50
        assert [found for found in contrasts if found[1] < READABLE] == []


def test_hostile_names_are_shown_as_they_are(seen: browser.Visit) -> None:
    assert seen.page.locator("script, img, iframe, [onerror]").count() == 0
    assert HOSTILE in seen.page.locator("main").inner_text()
    assert "onerror" in "".join(seen.page.locator("svg").all_text_contents())


def test_pictures_have_names_and_the_verdict_comes_first(seen: browser.Visit) -> None:
    pictures = seen.page.locator("svg")
    assert pictures.count() >= 8
    assert seen.page.get_by_role("img").count() == pictures.count()
    for picture in pictures.all():
        assert picture.get_attribute("aria-label")
        box = picture.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 100
    assert seen.page.evaluate("document.querySelector('h1').nextElementSibling.className") == "verdict"
    top = seen.page.locator(".verdict li").first.bounding_box()["y"]
    assert top < 400, "the first sentence is on the first screen"

"""A page as a browser shows it: what it asked for, what it complained of, what can be read on it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

CONTRAST = r"""
selector => {
  const rgb = text => { const c = text.match(/[\d.]+/g).map(Number); return c.length < 4 ? [...c, 1] : c; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0) return colour;
    }
    return [255, 255, 255, 1];
  };
  const shown = e => e.textContent.trim() && e.getClientRects().length;
  return [...document.querySelectorAll(selector)].filter(shown).map(e => {
    const style = getComputedStyle(e);
    const [a, b] = [light(rgb(e instanceof SVGElement ? style.fill : style.color)), light(behind(e))];
    return [e.textContent.trim().slice(0, 60), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  });
}
"""
"""Of each element that shows text: its text, and the contrast with what is behind it (WCAG 2.2, 1.4.3)."""


@dataclass
class Visit:
    """An open page and what happened on it."""

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def dismiss(self, dialog: Any) -> None:
        """Remember what a dialog said, and go on."""
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def contrasts(self, selector: str) -> list[tuple[str, float]]:
        """Text and contrast of each element that shows text."""
        return [(text, ratio) for text, ratio in self.page.evaluate(CONTRAST, selector)]


def missing() -> str | None:
    """Why there is no browser here, None where there is one."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (pip install playwright)"
    if _executable() is None:
        return f"no browser is installed ({', '.join(NAMES)})"
    return None


@contextmanager
def browser() -> Iterator[Any]:
    """A browser with a profile that is thrown away."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=_executable(), args=list(FLAGS))
        try:
            yield started
        finally:
            started.close()


@contextmanager
def visit(started: Any, file: Path, width: int, height: int, scheme: str) -> Iterator[Visit]:
    """``file`` opened from disk in a window of that size; ``scheme`` is ``light`` or ``dark``."""
    context = started.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    try:
        seen = Visit(context.new_page())
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("console", lambda said: seen.errors.append(said.text) if said.type == "error" else None)
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.on("dialog", seen.dismiss)
        seen.page.goto(file.resolve().as_uri(), wait_until="load")
        yield seen
    finally:
        context.close()


def _executable() -> str | None:
    return next((found for found in map(shutil.which, NAMES) if found), None)

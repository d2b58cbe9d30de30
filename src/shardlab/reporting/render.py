"""A page as HTML, and HTML as a file that is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from shardlab.errors import UsageError
from shardlab.reporting.parts import Page

_HERE = Path(__file__).parent
_FLAG = re.compile(r"(?<![\w-])--(store [a-z]+|[a-z][a-z-]*)")


def html(page: Page) -> str:
    """The page as one HTML text that needs nothing else.

    All text is escaped by the template but for the style sheet and the pictures, which are ours.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    templates.filters["prose"] = prose
    css = (_HERE / "page.css").read_text(encoding="utf-8").strip()
    return templates.get_template("page.html").render(page=page, css=css) + "\n"


def prose(text: str) -> Markup:
    """Escaped text in which a flag is code and stays on one line, that of a cure with its value."""
    return Markup(_FLAG.sub(r"<code>\g<0></code>", str(escape(text))))  # escaped before


def write(path: Path, text: str) -> None:
    """Put ``text`` in the place of ``path``: whoever reads it finds the old page or the new one.

    Raises UsageError where that is not possible; what was there stays.
    """
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        raise UsageError("-o must name a file", str(path))
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        if isinstance(error, OSError):
            raise _not_writable(path, error) from error
        raise


def _not_writable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"-o must name a file that can be written ({error.strerror})",
        str(path),
        cure="name a file in a folder that exists and is yours to write",
    )


def _umask() -> int:
    """What a new file of this process would lack: a temporary one is readable by its owner only."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""A matplotlib figure as an inline SVG that follows the page: its fonts, its colours, light or dark.

    figure -> svg text -> tree: nothing unseen, ids with a prefix, colours as CSS variables -> text

Text stays text, so that it can be searched and read aloud; what the data says in it is escaped by the
serialiser. Two figures of one page share no id, and the same figure gives the same bytes.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_HEX = re.compile(r"#[0-9a-fA-F]{6}\b")
_POINTER = re.compile(r"(?:url\(#|href=\"#)([^)\"]+)")
_DECIMALS = re.compile(r"-?\d+\.\d{3,}")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@contextmanager
def style() -> Iterator[None]:
    """Settings under which the page's figures are drawn and saved.

    A dollar sign in a name is a dollar sign, no formula; and a letter that this machine has no font for is drawn
    by whoever reads the page.
    """
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "shardlab", "text.parse_math": False}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def inline(figure: Figure, prefix: str, name: str, words: str, colours: Mapping[str, str]) -> str:
    """The figure as one ``<svg>`` element.

    ``prefix`` goes before every id; ``name`` and ``words`` are the text alternative; ``colours`` gives for a
    colour as ``#rrggbb`` in lower case the CSS value in its place. A colour that is not among them stays.
    """
    text = io.StringIO()
    with style():
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    root = ElementTree.fromstring(_NOT_XML.sub("\ufffd", text.getvalue()))
    _drop_what_is_not_seen(root)
    used = set(_POINTER.findall(text.getvalue()))
    for element in root.iter():
        _rename(element, prefix, used)
        _shorten(element)
        _restyle(element, colours)
    _describe(root, prefix, name, words)
    return _text_of(root)


def _drop_what_is_not_seen(root: ElementTree.Element) -> None:
    """Metadata, a style sheet that would hold for all of the page, bars without a height."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (_SVG + "metadata", _SVG + "style") or _is_flat(child):
                parent.remove(child)


def _is_flat(element: ElementTree.Element) -> bool:
    """A filled path without an outline that covers nothing."""
    style = element.get("style", "")
    if element.tag != _SVG + "path" or "stroke" in style or not style.startswith("fill: #"):
        return False
    numbers = re.findall(r"-?[\d.]+", element.get("d", ""))
    return len(set(numbers[0::2])) == 1 or len(set(numbers[1::2])) == 1


def _rename(element: ElementTree.Element, prefix: str, used: set[str]) -> None:
    """Ids that something points to, and what points to them; ``xlink:href`` as plain ``href``."""
    target = element.attrib.pop(_HREF, None)
    if target is not None:
        element.set("href", f"#{prefix}{target[1:]}" if target.startswith("#") else _palette(target))
    name = element.attrib.pop("id", None)
    if name in used:
        element.set("id", f"{prefix}{name}")
    if "clip-path" in element.attrib:
        element.set("clip-path", element.attrib["clip-path"].replace("url(#", f"url(#{prefix}"))


def _shorten(element: ElementTree.Element) -> None:
    """A hundredth of a point is not seen."""
    for key in ("d", "x", "y", "width", "height", "transform"):
        if key in element.attrib:
            plain = " ".join(element.attrib[key].split())
            element.set(key, _DECIMALS.sub(lambda found: f"{float(found[0]):.2f}", plain))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]


def _palette(uri: str) -> str:
    """A PNG in ``uri`` with one byte for each of its pixels instead of four."""
    head, _, content = uri.partition("base64,")
    picture, smaller = Image.open(io.BytesIO(base64.b64decode(content))), io.BytesIO()
    picture.quantize(256, method=Image.Quantize.FASTOCTREE).save(smaller, format="PNG", optimize=True)
    return f"{head}base64,{base64.b64encode(smaller.getvalue()).decode()}"


def _restyle(element: ElementTree.Element, colours: Mapping[str, str]) -> None:
    css = element.get("style")
    if css is None:
        return
    css = _HEX.sub(lambda found: colours.get(found[0].lower(), found[0]), css)
    element.set("style", re.sub(r"font-family:[^;]*", "font-family: inherit", css))
    if element.tag == _SVG + "text" and "fill" not in css:
        element.set("style", f"{element.get('style')}; fill: {colours.get('#000000', 'currentColor')}")


def _describe(root: ElementTree.Element, prefix: str, name: str, words: str) -> None:
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", _NOT_XML.sub("\ufffd", name))
    root.set("aria-describedby", prefix + "words")
    title, description = ElementTree.Element(_SVG + "title"), ElementTree.Element(_SVG + "desc")
    title.text, description.text = _NOT_XML.sub("\ufffd", name), _NOT_XML.sub("\ufffd", words)
    description.set("id", prefix + "words")
    root[0:0] = [title, description]


def _text_of(root: ElementTree.Element) -> str:
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)  # within HTML the element itself says what it is
        if not (element.text or "").strip():
            element.text = None
        element.tail = None
    return ElementTree.tostring(root, encoding="unicode")

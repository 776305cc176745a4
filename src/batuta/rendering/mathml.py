"""LaTeX as MathML, of known elements only.

The converter's own text is not used: it turns `&lt;` back into `<`, so that a formula could smuggle
any tag into the page. Here its tree is written anew, each text escaped.
"""

from __future__ import annotations

import re
from html import escape, unescape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_CHARACTERS = 4000
"""Characters of a formula that is set; a longer one is shown as it was written."""
_MACROS = re.compile(r"\\(?:re)?newcommand|\\providecommand|\\[gex]?def|\\let|\\newenvironment")
"""A formula that defines commands could grow without end."""
_MAX_DEPTH = 60
_ELEMENTS = {
    *("math", "mrow", "mi", "mn", "mo", "mtext", "ms", "mspace", "msub", "msup", "msubsup"),
    *("mfrac", "msqrt", "mroot", "munder", "mover", "munderover", "mtable", "mtr", "mtd"),
    *("mlabeledtr", "mstyle", "mpadded", "mphantom", "menclose", "mmultiscripts"),
    *("mprescripts", "none"),
}
_ATTRIBUTES = {
    *("display", "displaystyle", "mathvariant", "stretchy", "fence", "separator", "form"),
    *("lspace", "rspace", "movablelimits", "accent", "accentunder", "linethickness"),
    *("columnalign", "rowspacing", "columnspacing", "columnlines", "rowlines", "width", "height"),
    *("depth", "minsize", "maxsize", "symmetric", "scriptlevel", "notation"),
}
_ROWS = {"math", "mrow", "mstyle", "mtd", "mpadded", "mphantom", "msqrt", "menclose"}
"""Elements that take any number of children; in fractions and scripts, each position has a role."""
_SCRIPTS = {"msub", "msup", "msubsup", "munder", "mover", "munderover"}
_CLOSING = {")", "]", "}", "|"}
_THIN_SPACE = '<mspace width="0.167em"></mspace>'
_VALUE = re.compile(r"[A-Za-z0-9 .%+_-]{0,60}")


def render_mathml(latex: str, *, block: bool) -> str | None:
    """Return the formula as a `math` element; None if it cannot be set.

    Args:
        latex: without its delimiters.
        block: it stands on its own, not in a line.
    """
    if len(latex) > MAX_CHARACTERS or _MACROS.search(latex):
        return None
    # Loaded when the first formula is met: most pages have none.
    from latex2mathml.converter import Converter  # noqa: PLC0415

    try:
        tree = Converter(display="block" if block else "inline").convert_to_element(latex)
        return _write_element(tree, 0)
    except Exception:  # noqa: BLE001 - the converter raises all sorts of things for odd LaTeX
        return None


def _write_element(element: Element, depth: int) -> str:
    """Return the element and what is in it."""
    if depth > _MAX_DEPTH or element.tag not in _ELEMENTS:
        raise ValueError(f"not a formula: {element.tag}")
    known = (
        f' {name}="{value}"'
        for name, value in element.attrib.items()
        if name in _ATTRIBUTES and _VALUE.fullmatch(value)
    )
    inside = "".join(
        (_THIN_SPACE if element.tag in _ROWS and _needs_space(before, child) else "")
        + _write_element(child, depth + 1)
        + _escape_text(child.tail)
        for before, child in zip((None, *element), element, strict=False)
    )
    return f"<{element.tag}{''.join(known)}>{_escape_text(element.text)}{inside}</{element.tag}>"


def _needs_space(before: Element | None, element: Element) -> bool:
    """Tell whether TeX sets a thin space between them, as beside a function's name.

    There is none between the name and its opening bracket, and signs have spaces of their own.
    """
    if before is None:
        return False
    left, right = _ends_in(before), _begins_with(element)
    if "mspace" in {left.tag, right.tag}:
        return False
    if _is_function(before):
        return _is_function(element) or right.tag != "mo"
    if not _is_function(element):
        return False
    return left.tag != "mo" or unescape(left.text or "").strip() in _CLOSING


def _is_function(element: Element) -> bool:
    """Tell whether it names a function such as log, with or without something at its foot."""
    while element.tag in _SCRIPTS and len(element):
        element = element[0]
    return element.tag == "mi" and len(unescape(element.text or "").strip()) > 1


def _begins_with(element: Element) -> Element:
    while element.tag == "mrow" and len(element):
        element = element[0]
    return element


def _ends_in(element: Element) -> Element:
    while element.tag == "mrow" and len(element):
        element = element[-1]
    return element


def _escape_text(text: str | None) -> str:
    """Return the text, whose signs the converter writes as references."""
    return escape(unescape(text or ""), quote=False)

"""Renders a model's Markdown as safe HTML, and its LaTeX as MathML.

The HTML is safe by construction. Raw HTML is off, so only this module's renderer writes tags. URLs
other than http, https and mailto are left as text. Pictures become links, because loading one would
reveal to its host that, and when, an answer was read. Formulas contain only known elements. The
converter's own serialization is not used, since it turns `&lt;` back into `<`, with which a formula
could inject any tag; this module serializes the element tree with all text escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape, unescape
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_MOST_CHARACTERS = 4000
"""Maximum number of characters of a rendered formula; a longer formula is shown as LaTeX."""
_MACROS = re.compile(r"\\(?:re)?newcommand|\\providecommand|\\[gex]?def|\\let|\\newenvironment")
"""Macro definitions, with which a formula could expand without end."""
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
"""Elements with any number of children; in fractions and scripts each position has a role."""
_SCRIPTS = {"msub", "msup", "msubsup", "munder", "mover", "munderover"}
_CLOSING = {")", "]", "}", "|"}
_THIN_SPACE = '<mspace width="0.167em"></mspace>'
_VALUE = re.compile(r"[A-Za-z0-9 .%+_-]{0,60}")


def render_mathml(latex: str, *, block: bool) -> str | None:
    """Return the formula as a `math` element; None if it cannot be rendered.

    `latex` has no delimiters. A block is displayed in a separate line.
    """
    if len(latex) > _MOST_CHARACTERS or _MACROS.search(latex):
        return None
    # Loaded with the first formula: most pages have none.
    from latex2mathml.converter import Converter  # noqa: PLC0415

    try:
        tree = Converter(display="block" if block else "inline").convert_to_element(latex)
        return _write_element(tree, 0)
    except Exception:  # noqa: BLE001 - the converter raises many kinds of errors for odd LaTeX
        return None


def _write_element(element: Element, depth: int) -> str:
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
    """Return True if TeX puts a thin space between the elements, as beside a function's name.

    No space is put between the name and an opening bracket, and operators have their own spacing.
    """
    if before is None:
        return False
    left, right = _find_end(before, -1), _find_end(element, 0)
    if "mspace" in {left.tag, right.tag}:
        return False
    if _is_function(before):
        return _is_function(element) or right.tag != "mo"
    if not _is_function(element):
        return False
    return left.tag != "mo" or unescape(left.text or "").strip() in _CLOSING


def _is_function(element: Element) -> bool:
    """Return True if the element is a function name such as log, with or without a subscript."""
    while element.tag in _SCRIPTS and len(element):
        element = element[0]
    return element.tag == "mi" and len(unescape(element.text or "").strip()) > 1


def _find_end(element: Element, index: int) -> Element:
    """Return the first (0) or last (-1) element inside nested rows."""
    while element.tag == "mrow" and len(element):
        element = element[index]
    return element


def _escape_text(text: str | None) -> str:
    """Return the text escaped once; the converter writes some signs as entities."""
    return escape(unescape(text or ""), quote=False)


MAX_CHARACTERS = 200_000
"""Maximum number of characters that are rendered; a longer text is shown as plain text."""
_MAX_HIGHLIGHT_CHARACTERS = 20_000
"""Maximum number of characters of highlighted code; longer code has one colour."""
_TOP_LEVEL = "top"
"""The key, in the parser's environment, for the level of the text's largest headings."""
_AS_LATEX = "latex"
"""The key, in the same environment, for whether formulas are shown as LaTeX."""
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,30}")
_ADDRESS = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_CODE = Markup('<pre role="group" tabindex="0" aria-label="Code">')
_TABLE = '<div class="wide" role="group" tabindex="0" aria-label="Table">'
"""The frame of a table, which scrolls a wide table, also by keyboard."""
_FORMULA_DELIMITERS = (("$$", "$$"), (r"\[", r"\]"), (r"\(", r"\)"), ("$", "$"))


def render_markdown(text: str, *, as_latex: bool = False) -> Markup:
    """Return the Markdown text as HTML; a text that is too long is not rendered.

    With `as_latex`, formulas are shown as LaTeX.
    """
    if len(text) > MAX_CHARACTERS:
        return plain_text(text)
    parser, env = _markdown_parser(), {_AS_LATEX: int(as_latex)}
    tokens = parser.parse(text, env)
    tops = [int(token.tag[1:]) for token in tokens if token.type == "heading_open"]
    env[_TOP_LEVEL] = min(tops, default=1)
    return Markup(parser.renderer.render(tokens, parser.options, env))  # noqa: S704 - see the module's docstring


def plain_text(text: str) -> Markup:
    """Return the text unrendered, in a `pre` element."""
    return _CODE + text + Markup("</pre>")


@cache
def _markdown_parser() -> MarkdownIt:
    parser = MarkdownIt(
        "commonmark",
        {"html": False, "maxNesting": 40, "breaks": True, "highlight": _highlight_code},
    )
    parser.enable(["table", "strikethrough"])
    parser.inline.ruler.before("escape", "formula", _parse_formula)
    parser.validateLink = lambda url: bool(_ADDRESS.match(url))
    rules = {"formula": _show_formula, "image": _show_image, "link_open": _show_link}
    rules |= {f"{cell}_open": _show_cell for cell in ("th", "td")}
    rules |= {"fence": _show_code, "code_block": _show_code}
    rules |= {f"table_{end}": _show_table for end in ("open", "close")}
    rules |= {f"heading_{end}": _show_heading for end in ("open", "close")}
    for name, rule in rules.items():
        parser.add_render_rule(name, rule)
    return parser


def _highlight_code(code: str, language: str, _: str) -> str:
    """Return the highlighted code; empty if its language is not known or it is too long."""
    if not _LANGUAGE.fullmatch(language) or len(code) > _MAX_HIGHLIGHT_CHARACTERS:
        return ""
    from pygments import highlight  # noqa: PLC0415 - loaded when the first code is met
    from pygments.formatters import HtmlFormatter  # noqa: PLC0415
    from pygments.lexers import get_lexer_by_name  # noqa: PLC0415  # pyright: ignore[reportUnknownVariableType]
    from pygments.util import ClassNotFound  # noqa: PLC0415

    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return highlight(code, lexer, HtmlFormatter(nowrap=True, classprefix="hl-"))


def _parse_formula(state: StateInline, silent: bool) -> bool:  # noqa: FBT001 - markdown-it's form
    """Return True if a formula begins at the current position; add its token unless `silent`."""
    for opening, closing in _FORMULA_DELIMITERS:
        if not state.src.startswith(opening, state.pos):
            continue
        start = state.pos + len(opening)
        end = state.src.find(closing, start, state.posMax)
        if end < 0 or not _is_formula(state.src, start, end, opening):
            return False
        if not silent:
            token = state.push("formula", "math", 0)
            token.content = state.src[start:end]
            token.markup = opening
        state.pos = end + len(closing)
        return True
    return False


def _is_formula(text: str, start: int, end: int, opening: str) -> bool:
    """Return True if the delimited text is a formula, and single dollars are no money or code."""
    inner = text[start:end]
    if not inner.strip():
        return False
    if opening != "$":
        return True
    after = text[end + 1 : end + 2]
    is_apart = "\n\n" in inner or "`" in inner  # the second dollar is in code
    return inner == inner.strip() and not is_apart and not after.isdigit()


def _show_formula(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: OptionsDict, env: EnvType
) -> str:
    token = tokens[at]
    block = token.markup in {"$$", r"\["}
    shown = None if env[_AS_LATEX] else render_mathml(token.content, block=block)
    if shown and block:
        shown = shown.replace("<math", '<math tabindex="0"', 1)
    return shown or f"<code>{escape(token.content, quote=False)}</code>"


def _show_code(
    renderer: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType
) -> str:
    write = renderer.fence if tokens[at].type == "fence" else renderer.code_block
    return write(tokens, at, options, env).replace("<pre>", _CODE, 1)


def _show_table(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: OptionsDict, ___: EnvType
) -> str:
    return f"{_TABLE}<table>\n" if tokens[at].nesting > 0 else "</table></div>\n"


def _show_image(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: OptionsDict, ___: EnvType
) -> str:
    url, name = str(tokens[at].attrGet("src") or ""), tokens[at].content
    return f"<a {_link_attributes(url)}>{escape(name or 'picture')}</a>"


def _show_link(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: OptionsDict, ___: EnvType
) -> str:
    return f"<a {_link_attributes(str(tokens[at].attrGet('href') or ''))}>"


def _link_attributes(url: str) -> str:
    return f'href="{escape(url)}" rel="noopener noreferrer nofollow" target="_blank"'


def _show_cell(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: OptionsDict, ___: EnvType
) -> str:
    """Return a table cell, aligned by a class, since the CSP forbids inline styles."""
    style = str(tokens[at].attrGet("style") or "")
    align = next((side for side in ("right", "center") if side in style), "")
    return f'<{tokens[at].tag} class="{align}">' if align else f"<{tokens[at].tag}>"


def _show_heading(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: OptionsDict, env: EnvType
) -> str:
    """Return the tag of a heading of level 3 to 6, since the page has headings of its own."""
    level = min(6, int(tokens[at].tag[1:]) - env[_TOP_LEVEL] + 3)
    return f"<h{level}>" if tokens[at].nesting > 0 else f"</h{level}>\n"

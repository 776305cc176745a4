"""A model's Markdown as HTML that can do nothing.

Safe by construction: raw HTML is off, so each tag is one that this module's renderer writes;
addresses other than http, https and mailto are left as text; pictures become links, because
loading one would tell its host that, and when, an answer was read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from batuta.rendering.mathml import render_mathml

MAX_CHARACTERS = 200_000
"""Characters that are rendered; a longer text is shown as it is."""
_MAX_HIGHLIGHT_CHARACTERS = 20_000
"""Characters of code that are coloured."""
_TOP_LEVEL = "top"
"""The level of a text's largest headings."""
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,30}")
_ADDRESS = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_CODE = Markup('<pre role="group" tabindex="0" aria-label="Code">')
_TABLE = '<div class="wide" role="group" tabindex="0" aria-label="Table">'
"""The frame of a table: what is wider than its place is scrolled, by the keyboard too."""
_FORMULA_DELIMITERS = (("$$", "$$"), (r"\[", r"\]"), (r"\(", r"\)"), ("$", "$"))


def render_markdown(text: str) -> Markup:
    """Return the text as HTML."""
    if len(text) > MAX_CHARACTERS:
        return plain_text(text)
    parser, env = _markdown_parser(), dict[str, int]()
    tokens = parser.parse(text, env)
    tops = [int(token.tag[1:]) for token in tokens if token.type == "heading_open"]
    env[_TOP_LEVEL] = min(tops, default=1)
    return Markup(parser.renderer.render(tokens, parser.options, env))  # noqa: S704 - see the head of this module


def plain_text(text: str) -> Markup:
    """Return the text as it was written."""
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
    """Return the code's tokens in classes; nothing if its language is not known."""
    if not _LANGUAGE.fullmatch(language) or len(code) > _MAX_HIGHLIGHT_CHARACTERS:
        return ""
    from pygments import highlight  # noqa: PLC0415 - loaded when the first code is met
    from pygments.formatters import HtmlFormatter  # noqa: PLC0415
    from pygments.lexers import (  # noqa: PLC0415
        get_lexer_by_name,  # pyright: ignore[reportUnknownVariableType]
    )
    from pygments.util import ClassNotFound  # noqa: PLC0415

    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return highlight(code, lexer, HtmlFormatter(nowrap=True, classprefix="hl-"))


def _parse_formula(state: StateInline, silent: bool) -> bool:  # noqa: FBT001 - markdown-it's form
    """Take a formula where one begins here: see `_FORMULA_DELIMITERS`."""
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
    """Return True if the dollars are a formula's and not money's."""
    inner = text[start:end]
    if not inner.strip():
        return False
    if opening != "$":
        return True
    after = text[end + 1 : end + 2]
    return inner == inner.strip() and "\n\n" not in inner and not after.isdigit()


def _show_formula(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: OptionsDict, ___: EnvType
) -> str:
    token = tokens[at]
    block = token.markup in {"$$", r"\["}
    shown = render_mathml(token.content, block=block)
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
    """Return a table's cell, aligned by a class: styles in tags are not allowed."""
    style = str(tokens[at].attrGet("style") or "")
    align = next((side for side in ("right", "center") if side in style), "")
    return f'<{tokens[at].tag} class="{align}">' if align else f"<{tokens[at].tag}>"


def _show_heading(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: OptionsDict, env: EnvType
) -> str:
    """Show a heading from the third level on: the answer stands within a page with its own."""
    level = min(6, int(tokens[at].tag[1:]) - env[_TOP_LEVEL] + 3)
    return f"<h{level}>" if tokens[at].nesting > 0 else f"</h{level}>\n"

"""Renders a report's Markdown as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import PurePath

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

INK, GREY, GRID, PAPER, ACCENT = "#22272e", "#6b7480", "#e3e6ea", "#fefefe", "#c0392b"
"""Colours of figures; the page replaces each by its own colour for light and dark mode."""
_VARIABLES = {INK: "--ink", GREY: "--grey", GRID: "--grid", PAPER: "--paper", ACCENT: "--accent"}


def render_page(text: str, figures: Mapping[str, str] | None = None) -> str:
    """Return the page; its title is the first line of the Markdown `text`.

    Raw HTML in the Markdown is shown as text. `figures` are SVG documents by name. Each replaces
    the image whose file has that name; the image's description becomes the caption.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("image", _show_figure)
    parser.add_render_rule("table_open", _open_table)
    parser.add_render_rule("table_close", _close_table)
    tokens = parser.parse(text)
    for before, inline, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if [child.type for child in inline.children or ()] == ["image"]:
            before.hidden = after.hidden = True  # a figure is not a paragraph
    body = parser.renderer.render(tokens, parser.options, {"figures": figures or {}})
    title = text.partition("\n")[0].lstrip("# ")
    html = Markup(body)  # noqa: S704 - without raw HTML
    return render_template("page.html.jinja", title=title, body=html)


def render_template(name: str, **values: object) -> str:
    """Return the HTML page of a template of this package, filled in with these values."""
    environment = Environment(
        loader=PackageLoader("batuta.lab.evals", ""), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template(name).render(values)


def _show_figure(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: OptionsDict, env: EnvType
) -> str:
    """Render an image of the Markdown as the figure of its name, in the page's colours."""
    caption = escape(tokens[at].content)
    svg = str(env["figures"].get(PurePath(str(tokens[at].attrGet("src"))).stem, ""))
    svg = svg[svg.find("<svg") :] if svg else ""
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = svg.replace("<svg ", '<svg aria-hidden="true" style="max-width:100%;height:auto" ', 1)
    return (
        f'<figure><div role="img" aria-label="{caption}">{svg}</div>'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _open_table(
    _: RendererHTML, __: Sequence[Token], ___: int, ____: OptionsDict, _____: EnvType
) -> str:
    """Open a table that can be scrolled, also by keyboard, if it is wider than the page."""
    return '<div class="wide" role="group" tabindex="0" aria-label="Table"><table>\n'


def _close_table(
    _: RendererHTML, __: Sequence[Token], ___: int, ____: OptionsDict, _____: EnvType
) -> str:
    return "</table></div>\n"

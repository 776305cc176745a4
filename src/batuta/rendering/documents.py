"""Renders reports and slide decks as self-contained HTML files."""

from __future__ import annotations

import re
from collections.abc import Collection

from markupsafe import escape

from batuta.rendering.markdown import render_markdown

_BREAK = re.compile(r"^---[ \t]*$", re.MULTILINE)
_IN_ADDRESS = r"[^\s<>()\"'\[\]`]"
_ADDRESS = re.compile(rf"https?://(?:{_IN_ADDRESS}|\({_IN_ADDRESS}*\))+")
_AFTER_ADDRESS = ".,;:!?*_"
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title><style>{style}</style></head><body>
"""  # noqa: E501 - a policy is one line
_REPORT_STYLE = (
    "body{font:17px/1.6 Georgia,serif;max-width:44rem;margin:3rem auto;padding:0 1rem}"
    "h1,h2,h3{font-family:system-ui,sans-serif;line-height:1.2}table{border-collapse:collapse}"
    "td,th{border:1px solid #bbb;padding:.3rem .6rem}.unread{color:#a00}"
)
_DECK_STYLE = (
    "html{scroll-snap-type:y mandatory}body{margin:0;font:2.4vw/1.4 system-ui,sans-serif}"
    "section{min-height:100vh;box-sizing:border-box;padding:7vh 9vw;scroll-snap-align:start;"
    "border-bottom:1px solid #ddd}h1,h2{font-size:4vw;line-height:1.1;margin:0 0 5vh}"
    "@media print{section{page-break-after:always;border:0}}"
)


def cited_addresses(text: str) -> tuple[str, ...]:
    """Return the `http:` and `https:` URLs in a text, each once, in the order of the text.

    A URL ends before white space, a quote or a bracket, and has no punctuation at its end. Pairs of
    parentheses belong to it, as in the addresses of Wikipedia.
    """
    addresses = (match[0].rstrip(_AFTER_ADDRESS) for match in _ADDRESS.finditer(text))
    return tuple(dict.fromkeys(addresses))


def render_report(title: str, text: str, read: Collection[str], *, as_latex: bool = False) -> str:
    """Return a Markdown report as an HTML page, with a list of the cited pages not in `read`.

    Args:
        title: the title in the page's head; the page does not show it.
        text: the report.
        read: the URLs of the pages that were found by a search, or read, for the report.
        as_latex: whether formulas are shown as LaTeX.
    """
    unread = [url for url in cited_addresses(text) if url not in read]
    items = "".join(f"<li><code>{escape(url)}</code></li>" for url in unread)
    warning = (
        f'<div class="unread"><h2>Cited, but neither found nor read</h2><ul>{items}</ul></div>'
    )
    head = _HEAD.format(title=escape(title), style=_REPORT_STYLE)
    body = render_markdown(text, as_latex=as_latex)
    return f"{head}{body}{warning if unread else ''}</body></html>\n"


def render_deck(title: str, text: str) -> str:
    """Return slides as an HTML page, in which each slide begins on a new sheet when printed.

    In the Markdown text, a line of three hyphens separates two slides; empty slides are left out.
    `title` is in the page's head only.
    """
    slides = [part.strip() for part in _BREAK.split(text) if part.strip()]
    shown = "\n".join(f"<section>{render_markdown(slide)}</section>" for slide in slides)
    return f"{_HEAD.format(title=escape(title), style=_DECK_STYLE)}{shown}</body></html>\n"

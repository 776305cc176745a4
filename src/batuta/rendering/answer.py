"""Renders an answer as HTML: directly if it is short, else in a process with a time limit.

The libraries for Markdown, formulas and code take seconds for some texts of 20 kB
(design/0008-hostile-input.md); such a text is shown as plain text.
"""

from __future__ import annotations

from markupsafe import Markup

from batuta.offload import (
    SHARED_PROCESSES,
    ProcessDiedError,
    ProcessStartError,
    ProcessTimeoutError,
)

MAX_INLINE_CHARACTERS = 600
"""Maximum number of characters rendered in this process, in a few milliseconds at worst."""
CPU_SECONDS = 1.0


async def render_answer(text: str) -> Markup:
    """Return the text as HTML; if it is long and its rendering fails or is slow, unrendered."""
    from batuta.rendering.markdown import plain_text, render_markdown  # noqa: PLC0415 - for pages only

    if len(text) <= MAX_INLINE_CHARACTERS:
        return render_markdown(text)
    try:
        html: str = await SHARED_PROCESSES.call(render_markdown_html, text, cpu_seconds=CPU_SECONDS)
    except (ProcessTimeoutError, ProcessDiedError, ProcessStartError):
        return plain_text(text)
    return Markup(html)  # noqa: S704 - HTML of our own renderer, from another process


def render_markdown_html(text: str) -> str:
    """Return the HTML of `render_markdown` as a string, which can be sent between processes."""
    from batuta.rendering.markdown import render_markdown  # noqa: PLC0415 - for pages only

    return str(render_markdown(text))

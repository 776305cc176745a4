"""A whole answer as HTML: at once if it is short, else in a process that is killed in time.

Markdown, formulas and code are read by libraries that take seconds for some texts of 20 kB
(design/0008-hostile-input.md); such a text is shown as it was written.
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
"""Characters that are rendered in this process: the worst of them take some milliseconds."""
CPU_SECONDS = 1.0


async def render_answer(text: str) -> Markup:
    """Return the text as HTML; as it was written, if rendering it takes too long."""
    from batuta.rendering.markdown import plain_text, render_markdown  # noqa: PLC0415 - for pages only

    if len(text) <= MAX_INLINE_CHARACTERS:
        return render_markdown(text)
    try:
        html: str = await SHARED_PROCESSES.call(render_markdown_html, text, cpu_seconds=CPU_SECONDS)
    except (ProcessTimeoutError, ProcessDiedError, ProcessStartError):
        return plain_text(text)
    return Markup(html)  # noqa: S704 - the renderer's own, as it would be here


def render_markdown_html(text: str) -> str:
    """Return what `render_markdown` does as JSON."""
    from batuta.rendering.markdown import render_markdown  # noqa: PLC0415 - for pages only

    return str(render_markdown(text))

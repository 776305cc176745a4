"""A whole answer as HTML: at once if it is short, else in a process that is killed in time.

Markdown, formulas and code are read by libraries that take seconds for some texts of 20 kB
(design/0008-hostile-input.md); such a text is shown as it was written.
"""

from __future__ import annotations

from markupsafe import Markup

from batuta.offload import NotStarted, ProcessDied, TookTooLong, call_in_process

SHORT = 600
"""Characters that are rendered in this process: the worst of them take some milliseconds."""
CPU_SECONDS = 1.0


async def render_answer(text: str) -> Markup:
    """The text as HTML; as it was written, if rendering it takes too long."""
    from batuta.rendering.markdown import plain_text, rendered  # noqa: PLC0415 - for pages only

    if len(text) <= SHORT:
        return rendered(text)
    try:
        html: str = await call_in_process(rendered_html, text, cpu_seconds=CPU_SECONDS)
    except (TookTooLong, ProcessDied, NotStarted):
        return plain_text(text)
    return Markup(html)  # noqa: S704 - the renderer's own, as it would be here


def rendered_html(text: str) -> str:
    """`rendered` with a result that is JSON."""
    from batuta.rendering.markdown import rendered  # noqa: PLC0415 - for pages only

    return str(rendered(text))

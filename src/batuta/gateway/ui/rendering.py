"""Rendering of templates to responses, with the security headers of every page."""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, final

from anyio.to_thread import run_sync
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from batuta.core import Run, formatting
from batuta.gateway.http.body import cookie_value
from batuta.gateway.ui import conversation, run_view
from batuta.gateway.ui.assets import asset_url, takes_gzip
from batuta.gateway.ui.workflow_layout import BOX_HEIGHT, draw_workflow
from batuta.rendering.answer import render_answer

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_SMALL_BYTES = 1_000
"""Pages below this size fit into one network packet and are not compressed."""
_QUICK_BYTES = 100_000
"""Pages up to this size are compressed in the event loop, larger ones in a thread."""
_GZIP_LEVEL = 5
_SEE_OTHER = 303
THEMES = ("light", "dark")


@final
class PageResponse(HTMLResponse):
    """A page or fragment, compressed if it is not small and the client accepts gzip.

    The compressed length does not leak secrets (BREACH): cross-site requests do not carry the
    session cookie, and the form token is masked differently on each page.
    """

    def __init__(
        self, body: str | bytes, status: int = 200, headers: Mapping[str, str] = PAGE_HEADERS
    ) -> None:
        super().__init__(body, status, {**headers, "vary": "accept-encoding"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compress the body if it is large enough, and send it."""
        if len(self.body) >= _SMALL_BYTES and takes_gzip(Headers(scope=scope)):
            body = bytes(self.body)
            is_quick = len(body) <= _QUICK_BYTES
            self.body = _compress_body(body) if is_quick else await run_sync(_compress_body, body)
            self.headers["content-encoding"] = "gzip"
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def _compress_body(body: bytes) -> bytes:
    return gzip.compress(body, _GZIP_LEVEL, mtime=0)


@cache
def _template_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("batuta.gateway.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {
        "dollars": formatting.format_cost,
        "usd": formatting.format_usd,
        "seconds": formatting.format_seconds,
        "count": formatting.format_count,
        "short": formatting.format_short,
        "percent": formatting.format_percent,
        "when": formatting.format_zoned_time,
        "ago": formatting.format_age,
        "drafts_of": run_view.list_drafts,
        "last_asked": conversation.last_asked,
        "pictures_before": conversation.pictures_before,
        "attachments": conversation.describe_attachments,
        "results": conversation.sent_results,
    }
    known = {
        "asset": asset_url,
        "draw": draw_workflow,
        "box_height": BOX_HEIGHT,
        "run_view": run_view,
    }
    environment.filters.update(filters)  # pyright: ignore[reportUnknownMemberType]
    environment.globals.update(known)  # pyright: ignore[reportUnknownMemberType]
    return environment


async def compile_templates() -> None:
    """Compile the templates and load the Markdown renderer, so that no visitor waits for this.

    Each template is compiled by a separate call of a thread, so a server that is being stopped
    waits for one template at most.
    """
    await run_sync(importlib.import_module, "batuta.rendering.markdown")
    environment = _template_environment()
    for name in environment.list_templates():
        await run_sync(environment.get_template, name)


async def render_answers(*runs: Run | None) -> dict[str, Markup]:
    """Return the answers as HTML by run id, without runs that have none."""
    return {run.id: await render_answer(run.answer) for run in runs if run and run.answer}


def render_fragment(template: str, **values: Any) -> str:
    """Return the template rendered to HTML."""
    return _template_environment().get_template(template).render(values)


def render_page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return the template rendered as a page, with the visitor's theme."""
    theme = cookie_value(request.scope, "theme")
    common = {"theme": theme if theme in THEMES else "", "path": request.url.path}
    return PageResponse(render_fragment(template, **common, **values), status)


def redirect_to(address: str, headers: Mapping[str, str] = PAGE_HEADERS) -> RedirectResponse:
    """Return a redirect that the browser follows with GET, even after a POST."""
    return RedirectResponse(address, _SEE_OTHER, headers)

"""Templates into responses, with the headers that a page of ours always carries."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from batuta.core import Run, formatting
from batuta.gateway.http.body import cookie_value
from batuta.gateway.ui import conversation, run_view
from batuta.gateway.ui.assets import asset_url
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
THEMES = ("light", "dark")


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


def compile_templates() -> None:
    """Compile every template, so that no visitor waits until that is done."""
    importlib.import_module("batuta.rendering.markdown")
    environment = _template_environment()
    for name in environment.list_templates():
        environment.get_template(name)


async def render_answers(*runs: Run | None) -> dict[str, Markup]:
    """Return the answers of those runs as HTML, by the runs' ids."""
    return {run.id: await render_answer(run.answer) for run in runs if run and run.answer}


def render_fragment(template: str, **values: Any) -> str:
    """Return a piece of a page."""
    return _template_environment().get_template(template).render(values)


def render_page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a whole page."""
    theme = cookie_value(request.scope, "theme")
    common = {"theme": theme if theme in THEMES else "", "path": request.url.path}
    return HTMLResponse(render_fragment(template, **common, **values), status, PAGE_HEADERS)

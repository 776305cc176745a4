"""Templates into responses, with the headers that a page of ours always carries."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from batuta.core import Run
from batuta.gateway.ui import figures, trace
from batuta.gateway.ui.assets import address
from batuta.gateway.ui.layout import BOX_HEIGHT, draw
from batuta.rendering import render_answer

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
THEMES = ("light", "dark")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("batuta.gateway.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (
        figures.dollars,
        figures.usd,
        figures.seconds,
        figures.count,
        figures.short,
        figures.percent,
        figures.when,
        figures.ago,
    )
    filters = {each.__name__: each for each in shown}
    known = {"asset": address, "draw": draw, "box_height": BOX_HEIGHT, "trace": trace}
    environment.filters.update(filters)  # pyright: ignore[reportUnknownMemberType]
    environment.globals.update(known)  # pyright: ignore[reportUnknownMemberType]
    return environment


def prepare() -> None:
    """Compiles every template, so that no visitor waits until that is done."""
    importlib.import_module("batuta.rendering.markdown")
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)


async def rendered_answers(*runs: Run | None) -> dict[str, Markup]:
    """The answers of those runs as HTML, by the runs' ids."""
    return {run.id: await render_answer(run.answer) for run in runs if run and run.answer}


def fragment(template: str, **values: Any) -> str:
    """A piece of a page."""
    return _environment().get_template(template).render(values)


def screen(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A whole page."""
    theme = request.cookies.get("theme")
    common = {"theme": theme if theme in THEMES else "", "path": request.url.path}
    return HTMLResponse(fragment(template, **common, **values), status, HEADERS)

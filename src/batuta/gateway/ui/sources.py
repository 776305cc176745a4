"""The claims of a run's answer with their cited passages, and the answer as a report file."""

from __future__ import annotations

from base64 import b64decode
from typing import final

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from batuta.core import Reply, Run
from batuta.distribution import install_hint
from batuta.gateway.errors import APIError, not_found
from batuta.gateway.ui.page_runs import PageRuns
from batuta.gateway.ui.playground import load_run
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_page
from batuta.gateway.ui.session import WebSession
from batuta.language.claims import Claim, find_claims
from batuta.language.grounding import Source, find_sources
from batuta.offload import (
    SHARED_PROCESSES,
    ProcessDiedError,
    ProcessStartError,
    ProcessTimeoutError,
)
from batuta.rendering.documents import render_report
from batuta.rendering.report_pdf import has_pdf, render_report_base64
from batuta.store import Store

_CPU_SECONDS = 20.0
_WALL_SECONDS = 60.0
_TYPES = {"md": "text/markdown", "html": "text/html", "pdf": "application/pdf"}


@final
class SourcesPage:
    """Serves /ui/runs/{id}/sources, and the answer as a report file."""

    def __init__(self, store: Store | None, page_runs: PageRuns) -> None:
        self._store = store
        self._page_runs = page_runs

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the claims with their cited passages.

        Raises:
            APIError: the run cannot be shown or has no answer.
        """
        run = await self._load(request, session)
        claims = await run_sync(run_claims, run)
        return render_page(
            request,
            "sources.html.jinja",
            session=session,
            run=run,
            claims=claims,
            forms=[form for form in _TYPES if form != "pdf" or has_pdf()],
        )

    async def report(self, request: Request, session: WebSession) -> Response:
        """Send the answer as a self-contained file.

        Raises:
            APIError: the run cannot be shown or has no answer, the file format is unknown, or the
                report cannot be rendered.
        """
        form: str = request.path_params["form"]
        if form not in _TYPES:
            raise not_found(f"The report as '{form[:20]}'")
        run = await self._load(request, session)
        content = await _render_sources(run, form)
        headers = {
            **PAGE_HEADERS,
            "content-disposition": f'attachment; filename="report.{form}"',
        }
        return Response(content, media_type=_TYPES[form], headers=headers)

    async def _load(self, request: Request, session: WebSession) -> Run:
        run_id: str = request.path_params["id"]
        run = await load_run(self._store, self._page_runs, run_id, session)
        if not run.answer:
            raise not_found("An answer of this run")
        return run


def run_sources(run: Run) -> list[Source]:
    """Return the sources that the question contained or the run fetched."""
    answer = run.reply or Reply(text="")
    return find_sources(run.header.question, run.steps, run.header.pool, answer)


def run_claims(run: Run) -> list[Claim]:
    """Return the claims of a run's answer, with their citations."""
    return find_claims(run.answer or "", run_sources(run))


async def _render_sources(run: Run, form: str) -> bytes:
    """Return the report in that file format.

    Raises:
        APIError: PDF support is not installed, or the report could not be rendered.
    """
    text, title = run.answer or "", run.header.question.title[:200] or "Report"
    if form == "md":
        return text.encode("utf-8", "replace")
    if form == "pdf" and not has_pdf():
        raise APIError(501, "not_implemented", f"A PDF needs fpdf2: {install_hint('pdf')}")
    urls = sorted({source.url for source in run_sources(run) if source.url})
    render = render_report if form == "html" else render_report_base64
    try:
        rendered: str = await SHARED_PROCESSES.call(
            render, title, text, urls, cpu_seconds=_CPU_SECONDS, wall_seconds=_WALL_SECONDS
        )
    except (ProcessTimeoutError, ProcessDiedError, ProcessStartError):
        message = "The report could not be rendered; download it as Markdown instead."
        raise APIError(503, "overloaded", message) from None
    return rendered.encode() if form == "html" else b64decode(rendered)

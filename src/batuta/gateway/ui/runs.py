"""The stored runs: a list that is searched and filtered, and one run in every detail."""

from __future__ import annotations

from typing import final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from batuta.core import Outcome
from batuta.gateway.errors import invalid_value, not_found, require_part
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui.asked_runs import AskedRuns
from batuta.gateway.ui.playground import is_too_large
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_answers, render_fragment, render_page
from batuta.gateway.ui.session import WebSession, read_form
from batuta.store import RunSummary, Store

PAGE_SIZE = 50
_SEE_OTHER = 303
_FILTERS = ("q", "model", "outcome", "tenant")


@final
class RunPages:
    """The screens of the stored runs."""

    def __init__(self, catalogue: Catalogue, store: Store | None, asked_runs: AskedRuns) -> None:
        self._catalogue = catalogue
        self._asked_runs = asked_runs
        self._kept = store

    async def list_page(self, request: Request, session: WebSession) -> Response:
        """The list, newest first."""
        wanted = {name: request.query_params.get(name, "").strip() for name in _FILTERS}
        rows = await self._rows(wanted, request.query_params.get("after"), session)
        kept = {name: value for name, value in wanted.items() if value}
        older = (
            urlencode({**kept, "after": rows[PAGE_SIZE - 1].cursor})
            if len(rows) > PAGE_SIZE
            else None
        )
        return render_page(
            request,
            "runs.html.jinja",
            session=session,
            rows=rows[:PAGE_SIZE],
            wanted=wanted,
            older=older,
            newest=urlencode(kept) if request.query_params.get("after") else None,
            models=[model.name for model in self._catalogue.models],
            outcomes=[outcome.value for outcome in Outcome],
            kept=self._kept is not None,
        )

    async def run_page(self, request: Request, session: WebSession) -> Response:
        """A run: its workflow, its time, its steps, its answer.

        Raises:
            APIError: there is none, or it has not ended.
        """
        await self._asked_runs.wait_for_end(request.path_params["id"], session)
        summary = await self._summary(request, session)
        encoded = await self._store.get_encoded(summary.id, session.tenant) or b""
        is_large = is_too_large(encoded)
        run = None if is_large else await self._store.get(summary.id, session.tenant)
        answers = await render_answers(run)
        return render_page(
            request,
            "run.html.jinja",
            session=session,
            row=summary,
            run=run,
            answers=answers,
            is_large=is_large,
        )

    async def export(self, request: Request, session: WebSession) -> Response:
        """The whole run as JSON, as the API's trace has it."""
        run_id: str = request.path_params["id"]
        encoded = await self._store.get_encoded(run_id, session.tenant)
        if encoded is None:
            raise not_found(f"The run '{run_id[:80]}', or its content,")
        name = "".join(c for c in run_id if c.isalnum() or c in "_-")
        headers = {**PAGE_HEADERS, "content-disposition": f'attachment; filename="{name}.json"'}
        return Response(encoded, media_type="application/json", headers=headers)

    async def feedback(self, request: Request, session: WebSession) -> Response:
        """Judges a run; an empty score takes the judgement back."""
        form = await read_form(request, session)
        given = form.get("score", "")
        if given not in {"", "0", "1"}:
            raise invalid_value("score", "it must be 0 or 1, or empty.")
        score = float(given) if given else None
        summary = await self._summary(request, session)
        await self._store.score(summary.id, score, form.get("comment", ""), session.tenant)
        if request.headers.get("x-fragment"):
            values = {"id": summary.id, "score": score, "token": session.token}
            return Response(
                render_fragment("feedback.html.jinja", **values),
                media_type="text/html",
                headers=PAGE_HEADERS,
            )
        return RedirectResponse(f"/ui/runs/{summary.id}", _SEE_OTHER, PAGE_HEADERS)

    async def _rows(
        self, wanted: dict[str, str], after: str | None, session: WebSession
    ) -> list[RunSummary]:
        """A page of runs, and one more if there is a further page."""
        if self._kept is None:
            return []
        outcome = wanted["outcome"]
        if outcome and outcome not in set(Outcome):
            raise invalid_value("outcome", "there is no such outcome.")
        try:
            return await self._store.list(
                PAGE_SIZE + 1,
                after or None,
                tenant=session.tenant if session.tenant is not None else wanted["tenant"] or None,
                model=wanted["model"] or None,
                outcome=Outcome(outcome) if outcome else None,
                search=wanted["q"] or None,
            )
        except ValueError:
            raise invalid_value("after", "it is not a position in this list.") from None

    async def _summary(self, request: Request, session: WebSession) -> RunSummary:
        run_id: str = request.path_params["id"]
        summary = await self._store.summary(run_id, session.tenant)
        if summary is None:
            raise not_found(f"The run '{run_id[:80]}'")
        return summary

    @property
    def _store(self) -> Store:
        return require_part(self._kept, "This server keeps no runs.")

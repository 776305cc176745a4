"""The stored runs: a list that is searched and filtered, and one run in every detail."""

from __future__ import annotations

from typing import final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from batuta.core import Outcome
from batuta.gateway.models import Orchestra
from batuta.gateway.refusal import Refusal, not_found, wrong_value
from batuta.gateway.ui.playground import stored
from batuta.gateway.ui.screens import HEADERS, fragment, rendered_answers, screen
from batuta.gateway.ui.visitor import Visitor, read_form
from batuta.store import RunSummary, Store, encode_run

PAGE = 50
_SEE_OTHER = 303
_FILTERS = ("q", "model", "outcome", "tenant")


@final
class Archive:
    """The screens of the stored runs."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra

    async def page(self, request: Request, visitor: Visitor) -> Response:
        """The list, newest first."""
        wanted = {name: request.query_params.get(name, "").strip() for name in _FILTERS}
        rows = await self._rows(wanted, request.query_params.get("after"), visitor)
        kept = {name: value for name, value in wanted.items() if value}
        older = urlencode({**kept, "after": rows[PAGE - 1].cursor}) if len(rows) > PAGE else None
        return screen(
            request,
            "runs.html.jinja",
            visitor=visitor,
            rows=rows[:PAGE],
            wanted=wanted,
            older=older,
            newest=urlencode(kept) if request.query_params.get("after") else None,
            models=[model.name for model in self._orchestra.models],
            outcomes=[outcome.value for outcome in Outcome],
            kept=self._orchestra.store is not None,
        )

    async def one(self, request: Request, visitor: Visitor) -> Response:
        """A run: its workflow, its time, its steps, its answer."""
        summary = await self._summary(request, visitor)
        run = await self._store.get(summary.id, visitor.tenant)
        answers = await rendered_answers(run)
        return screen(
            request, "run.html.jinja", visitor=visitor, row=summary, run=run, answers=answers
        )

    async def export(self, request: Request, visitor: Visitor) -> Response:
        """The whole run as JSON, as the API's trace has it."""
        run = await stored(self._orchestra, request.path_params["id"], visitor)
        name = "".join(c for c in run.id if c.isalnum() or c in "_-")
        headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}.json"'}
        return Response(encode_run(run), media_type="application/json", headers=headers)

    async def feedback(self, request: Request, visitor: Visitor) -> Response:
        """Judges a run; an empty score takes the judgement back."""
        form = await read_form(request, visitor)
        given = form.get("score", "")
        if given not in {"", "0", "1"}:
            raise wrong_value("score", "it must be 0 or 1, or empty.")
        score = float(given) if given else None
        summary = await self._summary(request, visitor)
        await self._store.score(summary.id, score, form.get("comment", ""), visitor.tenant)
        if request.headers.get("x-fragment"):
            values = {"id": summary.id, "score": score, "token": visitor.token}
            return Response(
                fragment("feedback.html.jinja", **values), media_type="text/html", headers=HEADERS
            )
        return RedirectResponse(f"/ui/runs/{summary.id}", _SEE_OTHER, HEADERS)

    async def _rows(
        self, wanted: dict[str, str], after: str | None, visitor: Visitor
    ) -> list[RunSummary]:
        """A page of runs, and one more if there is a further page."""
        if self._orchestra.store is None:
            return []
        outcome = wanted["outcome"]
        if outcome and outcome not in set(Outcome):
            raise wrong_value("outcome", "there is no such outcome.")
        try:
            return await self._store.list(
                PAGE + 1,
                after or None,
                visitor.tenant if visitor.tenant is not None else wanted["tenant"] or None,
                wanted["model"] or None,
                Outcome(outcome) if outcome else None,
                wanted["q"] or None,
            )
        except ValueError:
            raise wrong_value("after", "it is no place in this list.") from None

    async def _summary(self, request: Request, visitor: Visitor) -> RunSummary:
        run_id: str = request.path_params["id"]
        summary = await self._store.summary(run_id, visitor.tenant)
        if summary is None:
            raise not_found(f"The run '{run_id[:80]}'")
        return summary

    @property
    def _store(self) -> Store:
        if self._orchestra.store is None:
            raise Refusal(404, "not_found", "This server keeps no runs.")
        return self._orchestra.store

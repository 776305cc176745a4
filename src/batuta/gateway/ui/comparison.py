"""Two runs side by side, and what differs between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from batuta.config.aliases import MINI_MODEL
from batuta.core import Run
from batuta.core.formatting import format_cost, format_count, format_seconds
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui.page_runs import PageRuns
from batuta.gateway.ui.playground import default_model, group_models, load_run
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_answers, render_fragment, render_page
from batuta.gateway.ui.session import WebSession
from batuta.rendering.difference import DiffPiece, compare_texts
from batuta.store import RunSummary, Store

_LATEST = 50
"""Runs that are offered to choose from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A figure of both runs."""

    name: str
    one: str
    other: str
    change: str
    """The change from the first to the second; empty if there is nothing to say."""


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """A run that the page shows from its beginning."""

    id: str
    model: str
    question: str


def comparison_rows(one: Run, other: Run) -> list[ComparisonRow]:
    """The figures of both runs, and how the second differs."""
    tokens = (one.usage.total, other.usage.total)
    known = not (one.cost.unpriced_calls or other.cost.unpriced_calls)
    costs = (float(one.cost.usd), float(other.cost.usd))
    return [
        ComparisonRow(
            name="System", one=one.header.model or "–", other=other.header.model or "–", change=""
        ),
        ComparisonRow(
            name="Conductor", one=one.header.conductor, other=other.header.conductor, change=""
        ),
        ComparisonRow(name="Outcome", one=one.outcome.value, other=other.outcome.value, change=""),
        ComparisonRow(
            name="Steps", one=str(len(one.steps)), other=str(len(other.steps)), change=""
        ),
        ComparisonRow(
            name="Rounds", one=str(len(one.rounds)), other=str(len(other.rounds)), change=""
        ),
        ComparisonRow(
            name="Tokens",
            one=format_count(tokens[0]),
            other=format_count(tokens[1]),
            change=_relative_change(*tokens),
        ),
        ComparisonRow(
            name="Cost",
            one=format_cost(one.cost),
            other=format_cost(other.cost),
            change=_relative_change(*costs) if known else "",
        ),
        ComparisonRow(
            name="Time",
            one=format_seconds(one.seconds),
            other=format_seconds(other.seconds),
            change=_relative_change(one.seconds, other.seconds),
        ),
    ]


def ask_differently(one: Run, other: Run) -> bool:
    """Tell whether the runs were asked different things; earlier turns count, too."""
    return one.header.question.messages != other.header.question.messages


def _relative_change(one: float, other: float) -> str:
    if not one or one == other:
        return ""
    factor = other / one
    return f"{(factor - 1) * 100:+.0f} %" if factor < 10 else f"×\u202f{factor:.0f}"  # noqa: PLR2004


@final
class ComparisonPage:
    """The screen."""

    def __init__(self, catalogue: Catalogue, store: Store | None, page_runs: PageRuns) -> None:
        self._catalogue = catalogue
        self._store = store
        self._page_runs = page_runs

    async def page(self, request: Request, session: WebSession) -> Response:
        """Two stored runs, or a question for two systems."""
        query, catalogue = request.query_params, self._catalogue
        following = await self._following(request, session)
        runs = [] if following else await self._runs(request, session)
        question = runs[0].header.question.text if runs else query.get("question", "")
        if following:
            question = following[0].question
        second = MINI_MODEL if catalogue.find_model(MINI_MODEL) else catalogue.models[-1].name
        return render_page(
            request,
            "compare.html.jinja",
            session=session,
            ids=[query.get(side, "").strip() for side in ("a", "b")],
            runs=runs,
            following=following,
            answers=await render_answers(*runs),
            lines=comparison_rows(*runs) if len(runs) > 1 else [],
            pieces=await _text_difference(*runs) if len(runs) > 1 else [],
            question=question,
            differ=len(runs) > 1 and ask_differently(*runs),
            latest=await self._latest(session),
            served=group_models(
                m for m in catalogue.models if session.caller.permissions.allows_model(m.name)
            ),
            models=(query.get("first") or default_model(catalogue), query.get("second") or second),
        )

    async def difference(self, request: Request, session: WebSession) -> Response:
        """Show the differences of two runs, as a piece of a page."""
        runs = await self._runs(request, session)
        if len(runs) < 2:  # noqa: PLR2004 - two sides
            return HTMLResponse("", headers=PAGE_HEADERS)
        values = {
            "lines": comparison_rows(*runs),
            "pieces": await _text_difference(*runs),
            "differ": ask_differently(*runs),
        }
        return HTMLResponse(
            render_fragment("difference.html.jinja", **values), headers=PAGE_HEADERS
        )

    async def _following(self, request: Request, session: WebSession) -> list[FollowedRun]:
        """Return both runs if one of them goes on, for the page tells both then."""
        given = [request.query_params.get(side, "").strip() for side in ("a", "b")]
        going_on = [await self._page_runs.find_going_on(name, session) for name in given]
        if not all(given) or not any(going_on):
            return []
        found: list[FollowedRun] = []
        for name, live in zip(given, going_on, strict=True):
            if live is not None:
                found.append(FollowedRun(live.id, live.model, live.question))
                continue
            run = await load_run(self._store, self._page_runs, name, session)
            found.append(FollowedRun(run.id, run.header.model, run.header.question.text))
        return found

    async def _latest(self, session: WebSession) -> list[RunSummary]:
        if self._store is None:
            return []
        return await self._store.list(_LATEST, tenant=session.tenant)

    async def _runs(self, request: Request, session: WebSession) -> list[Run]:
        """Both runs, or the one that was named."""
        given = [request.query_params.get(side, "").strip() for side in ("a", "b")]
        return [
            await load_run(self._store, self._page_runs, name, session) for name in given if name
        ]


async def _text_difference(one: Run, other: Run) -> list[DiffPiece]:
    return await compare_texts(one.answer or "", other.answer or "")

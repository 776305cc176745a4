"""Two runs side by side, and what differs between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from batuta.core import Run
from batuta.gateway.models import MINI, Orchestra
from batuta.gateway.ui import figures
from batuta.gateway.ui.playground import default_model, groups, stored
from batuta.gateway.ui.screens import HEADERS, fragment, rendered_answers, screen
from batuta.gateway.ui.visitor import Visitor
from batuta.rendering.difference import Piece, compare_texts
from batuta.store import RunSummary

_LATEST = 50
"""Runs that are offered to choose from."""


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of both runs."""

    name: str
    one: str
    other: str
    change: str
    """From the first to the second; empty: nothing to say."""


def lines(one: Run, other: Run) -> list[Line]:
    """The figures of both runs, and how the second differs."""
    tokens = (one.usage.total, other.usage.total)
    known = not (one.cost.unpriced_calls or other.cost.unpriced_calls)
    costs = (float(one.cost.usd), float(other.cost.usd))
    return [
        Line("System", one.header.model or "–", other.header.model or "–", ""),
        Line("Conductor", one.header.conductor, other.header.conductor, ""),
        Line("Outcome", one.outcome.value, other.outcome.value, ""),
        Line("Steps", str(len(one.steps)), str(len(other.steps)), ""),
        Line("Rounds", str(len(one.rounds)), str(len(other.rounds)), ""),
        Line("Tokens", figures.count(tokens[0]), figures.count(tokens[1]), _change(*tokens)),
        Line(
            "Cost",
            figures.dollars(one.cost),
            figures.dollars(other.cost),
            _change(*costs) if known else "",
        ),
        Line(
            "Time",
            figures.seconds(one.seconds),
            figures.seconds(other.seconds),
            _change(one.seconds, other.seconds),
        ),
    ]


def _change(one: float, other: float) -> str:
    if not one or one == other:
        return ""
    factor = other / one
    return f"{(factor - 1) * 100:+.0f} %" if factor < 10 else f"×\u202f{factor:.0f}"  # noqa: PLR2004


@final
class Comparison:
    """The screen."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra

    async def page(self, request: Request, visitor: Visitor) -> Response:
        """Two stored runs, or a question for two systems."""
        query, orchestra = request.query_params, self._orchestra
        runs = await self._runs(request, visitor)
        question = runs[0].header.question.text if runs else query.get("question", "")
        second = MINI if orchestra.find(MINI) else orchestra.models[-1].name
        return screen(
            request,
            "compare.html.jinja",
            visitor=visitor,
            ids=[query.get(side, "").strip() for side in ("a", "b")],
            runs=runs,
            answers=await rendered_answers(*runs),
            lines=lines(*runs) if len(runs) > 1 else [],
            pieces=await _pieces(*runs) if len(runs) > 1 else [],
            question=question,
            latest=await self._latest(visitor),
            served=groups(
                m for m in orchestra.models if visitor.caller.policy.allows_model(m.name)
            ),
            models=(query.get("first") or default_model(orchestra), query.get("second") or second),
        )

    async def figures(self, request: Request, visitor: Visitor) -> Response:
        """What differs between two runs, as a piece of a page."""
        runs = await self._runs(request, visitor)
        if len(runs) < 2:  # noqa: PLR2004 - two sides
            return HTMLResponse("", headers=HEADERS)
        values = {"lines": lines(*runs), "pieces": await _pieces(*runs)}
        return HTMLResponse(fragment("difference.html.jinja", **values), headers=HEADERS)

    async def _latest(self, visitor: Visitor) -> list[RunSummary]:
        store = self._orchestra.store
        return [] if store is None else await store.list(_LATEST, tenant=visitor.tenant)

    async def _runs(self, request: Request, visitor: Visitor) -> list[Run]:
        """Both runs, or the one that was named."""
        given = [request.query_params.get(side, "").strip() for side in ("a", "b")]
        return [await stored(self._orchestra, name, visitor) for name in given if name]


async def _pieces(one: Run, other: Run) -> list[Piece]:
    return await compare_texts(one.answer or "", other.answer or "")

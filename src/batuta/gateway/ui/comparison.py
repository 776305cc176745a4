"""The comparison screen: up to four runs side by side, and their differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from batuta.config.aliases import MINI_MODEL
from batuta.core import Run
from batuta.core.formatting import format_cost, format_count, format_seconds
from batuta.gateway.errors import invalid_value
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui.page_runs import PageRuns
from batuta.gateway.ui.playground import default_model, group_models, load_run
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_answers, render_fragment, render_page
from batuta.gateway.ui.session import WebSession
from batuta.rendering.difference import DiffPiece, compare_texts
from batuta.store import Store

_LATEST = 50
"""Maximum number of stored runs offered for selection."""
SIDES = ("a", "b", "c", "d")
"""The names of the sides in URLs."""
CHOICES = ("first", "second", "third", "fourth")
"""The names of the fields that choose each side's system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One figure, with its value for each run."""

    name: str
    values: tuple[str, ...]
    changes: tuple[str, ...]
    """Each run's change relative to the first run; empty if there is none, or it is unknown."""

    @property
    def differs(self) -> bool:
        """Return True if the values of the runs differ."""
        return len(set(self.values)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDifference:
    """The difference of an answer from the first answer."""

    side: str
    """The name of the answer's side."""
    pieces: list[DiffPiece]

    @property
    def is_same(self) -> bool:
        """Return True if the two answers are identical."""
        return all(kind == "same" for kind, _ in self.pieces)


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """A run whose events the page follows from the beginning."""

    id: str
    model: str
    question: str


def comparison_rows(runs: Sequence[Run]) -> list[ComparisonRow]:
    """Return the figures of all runs, some with their changes relative to the first run."""
    words: list[tuple[str, Callable[[Run], str]]] = [
        ("System", lambda run: run.header.model or "–"),
        ("Conductor", lambda run: run.header.conductor),
        ("Outcome", lambda run: run.outcome.value),
        ("Steps", lambda run: str(len(run.steps))),
        ("Rounds", lambda run: str(len(run.rounds))),
    ]
    figures: list[tuple[str, Callable[[Run], str], Callable[[Run], float | None]]] = [
        ("Tokens", lambda run: format_count(run.usage.total), lambda run: run.usage.total),
        ("Cost", lambda run: format_cost(run.cost), _known_dollars),
        ("Time", lambda run: format_seconds(run.seconds), lambda run: run.seconds),
    ]
    same = ("",) * len(runs)
    compared = [
        ComparisonRow(name=name, values=tuple(map(text, runs)), changes=same)
        for name, text in words
    ]
    return compared + [
        ComparisonRow(
            name=name,
            values=tuple(map(text, runs)),
            changes=tuple(_relative_change(value(runs[0]), value(run)) for run in runs),
        )
        for name, text, value in figures
    ]


def _known_dollars(run: Run) -> float | None:
    """Return the run's cost in dollars; None if the price of a call is unknown."""
    return None if run.cost.unpriced_calls else float(run.cost.usd)


def questions_differ(runs: Sequence[Run]) -> bool:
    """Return True if the runs answer different conversations, including earlier turns."""
    first, *others = (run.header.question.messages for run in runs)
    return any(other != first for other in others)


def _relative_change(one: float | None, other: float | None) -> str:
    if not one or other is None or one == other:
        return ""
    factor = other / one
    return f"{(factor - 1) * 100:+.0f} %" if factor < 10 else f"×\u202f{factor:.0f}"  # noqa: PLR2004


@final
class ComparisonPage:
    """Serves /ui/compare."""

    def __init__(self, catalogue: Catalogue, store: Store | None, page_runs: PageRuns) -> None:
        self._catalogue = catalogue
        self._store = store
        self._page_runs = page_runs

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the runs in the URL side by side, below the form to ask several systems a question.

        Raises:
            APIError: the URL names too many runs, or a run that cannot be shown.
        """
        query, catalogue = request.query_params, self._catalogue
        following = await self._following(request, session)
        runs = [] if following else await self._runs(request, session)
        question = runs[0].header.question.text if runs else query.get("question", "")
        if following:
            question = following[0].question
        given, shown = _given_runs(request), [run.header.model for run in runs]
        return render_page(
            request,
            "compare.html.jinja",
            session=session,
            sides=SIDES,
            choices=CHOICES,
            ids=[*given, *[""] * (len(SIDES) - len(given))],
            runs=runs,
            following=following,
            answers=await render_answers(*runs),
            question=question,
            latest=await self._store.list(_LATEST, tenant=session.tenant) if self._store else [],
            served=group_models(
                m for m in catalogue.models if session.caller.permissions.allows_model(m.name)
            ),
            models=_chosen_models(request, catalogue, [f.model for f in following] or shown),
            **await _compare_runs(runs),
        )

    async def difference(self, request: Request, session: WebSession) -> Response:
        """Return the differences of the runs as an HTML fragment; fewer than two runs give "".

        Raises:
            APIError: the URL names too many runs, or a run that cannot be shown.
        """
        runs = await self._runs(request, session)
        if len(runs) < 2:  # noqa: PLR2004 - nothing to compare with
            return HTMLResponse("", headers=PAGE_HEADERS)
        html = render_fragment("difference.html.jinja", sides=SIDES, **await _compare_runs(runs))
        return HTMLResponse(html, headers=PAGE_HEADERS)

    async def _following(self, request: Request, session: WebSession) -> list[FollowedRun]:
        """Return the runs in the URL if there are several and one still runs; else none."""
        given = _given_runs(request)
        running = [await self._page_runs.find_running(name, session) for name in given]
        if len(given) < 2 or not any(running):  # noqa: PLR2004 - nothing to compare with
            return []
        found: list[FollowedRun] = []
        for name, live in zip(given, running, strict=True):
            if live is not None:
                found.append(FollowedRun(live.id, live.model, live.question))
                continue
            run = await load_run(self._store, self._page_runs, name, session)
            found.append(FollowedRun(run.id, run.header.model, run.header.question.text))
        return found

    async def _runs(self, request: Request, session: WebSession) -> list[Run]:
        return [
            await load_run(self._store, self._page_runs, name, session)
            for name in _given_runs(request)
        ]


def _given_runs(request: Request) -> list[str]:
    """Return the run ids in the URL, from its parameters `a` to `d` and `run`.

    Raises:
        APIError: the URL names too many runs.
    """
    query = request.query_params
    named = [*(query.get(side, "") for side in SIDES), *query.getlist("run")]
    given = [name.strip() for name in named if name.strip()]
    if len(given) > len(SIDES):
        raise invalid_value("run", f"at most {len(SIDES)} runs can be compared.")
    return given


def _chosen_models(request: Request, catalogue: Catalogue, shown: Sequence[str]) -> list[str]:
    """Return each side's system: the one selected, else its run's, else a default; empty: none."""
    second = MINI_MODEL if catalogue.find_model(MINI_MODEL) else catalogue.models[-1].name
    usual = [default_model(catalogue), second, "", ""]
    if len(shown) > 1 and all(map(catalogue.find_model, shown)):
        usual[: len(shown)] = shown
    named = zip(CHOICES, usual, strict=True)
    return [request.query_params.get(name) or model for name, model in named]


async def _compare_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the template values for the runs' differences."""
    if len(runs) < 2:  # noqa: PLR2004 - nothing to compare with
        return {"lines": [], "texts": [], "differ": False}
    first, *others = (run.answer or "" for run in runs)
    texts = [
        TextDifference(side=side, pieces=await compare_texts(first, other))
        for side, other in zip(SIDES[1:], others, strict=False)
        if first or other
    ]
    return {"lines": comparison_rows(runs), "texts": texts, "differ": questions_differ(runs)}

"""The screen of a session: its requests by turn, its acting workers, and why they changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import final

from starlette.requests import Request
from starlette.responses import Response

from batuta.core import Cost
from batuta.core.small_number import read_small_number
from batuta.gateway.errors import invalid_value, not_found, require_part
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui.curves import Chart, draw_chart
from batuta.gateway.ui.page_runs import PageRuns
from batuta.gateway.ui.rendering import render_page
from batuta.gateway.ui.run_view import worker_colour
from batuta.gateway.ui.session import WebSession
from batuta.store import RunSummary, Store
from batuta.store.savings import list_savings
from batuta.store.session_course import SessionRequest, read_requests, read_session
from batuta.usage import ZERO_COST

PAGE_SIZE = 50
"""Maximum number of requests on a page."""
MOST_SWITCHES = 50
"""Maximum number of switches listed above the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRequest:
    """A request of the session with its number."""

    number: int
    """Position in the session, from 1."""
    request: SessionRequest
    run: RunSummary

    @property
    def cached_share(self) -> float | None:
        """The fraction of the prompt read from a cache; None if there was no prompt."""
        return _cached_share(self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """A turn's consecutive requests on the page."""

    number: int | None
    """Number of the turn, from 1; None for requests outside any turn, such as an agent's own."""
    requests: Sequence[ShownRequest]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive requests with one acting worker.

    `start` and `width` are percentages of the number of the session's requests.
    """

    worker: str
    """Empty if no worker acted."""
    start: float
    width: float


@dataclass(slots=True)
class WorkerPart:
    """One worker's requests and cost in a session."""

    requests: int = 0
    cost: Cost = field(default=ZERO_COST)


@final
class SessionCourse:
    """The figures of a session's first requests, at most `session_course.MOST_REQUESTS`."""

    def __init__(self, requests: Sequence[SessionRequest]) -> None:
        self.requests = requests
        self.turns: dict[str, int] = {}
        """The number of each turn, from 1, by the turn's digest."""
        self.parts: dict[str, WorkerPart] = {}
        """The requests and cost of each worker, in the order of their first requests.

        The empty name stands for requests at which no worker acted.
        """
        for request in requests:
            if request.acted.turn is not None:
                self.turns.setdefault(request.acted.turn, len(self.turns) + 1)
            part = self.parts.setdefault(request.acted.acting or "", WorkerPart())
            part.requests += 1
            part.cost += request.cost

    @property
    def cost(self) -> Cost:
        """The cost of all requests."""
        return sum((request.cost for request in self.requests), ZERO_COST)

    @property
    def cached_share(self) -> float | None:
        """The fraction of all prompts read from a cache; None if there was no prompt."""
        tokens = sum(request.input_tokens for request in self.requests)
        cached = sum(request.cached_tokens for request in self.requests)
        return cached / tokens if tokens else None

    @property
    def switches(self) -> list[tuple[int, SessionRequest]]:
        """The requests at which another worker took over, each with its number."""
        numbered = enumerate(self.requests, 1)
        return [(number, each) for number, each in numbered if each.acted.took_over_from]

    @property
    def stretches(self) -> Iterator[Stretch]:
        """The acting workers in the order of the requests."""
        before, whole = 0, len(self.requests)
        for worker, members in groupby(self.requests, lambda each: each.acted.acting or ""):
            count = sum(1 for _ in members)
            yield Stretch(worker, 100 * before / whole, 100 * count / whole)
            before += count

    def draw(self) -> list[Chart]:
        """Return charts of the accumulated cost and of the cached fraction over the requests."""
        spent, lines = ZERO_COST, list[dict[str, float | int | None]]()
        for number, request in enumerate(self.requests, 1):
            spent += request.cost
            line = {"step": number, "usd": float(spent.usd), "cached": _cached_share(request)}
            lines.append(line)
        series = (("Dollars so far", "usd"), ("Read from a cache", "cached"))
        drawn = (
            draw_chart(title, ((key, ""),), lines, joins_gaps=True, axis="request")
            for title, key in series
        )
        return [chart for chart in drawn if chart is not None]

    def group(self, shown: Sequence[ShownRequest]) -> list[ShownTurn]:
        """Group the requests by turn."""
        return [
            ShownTurn(number=self.turns.get(turn or ""), requests=list(members))
            for turn, members in groupby(shown, lambda each: each.request.acted.turn)
        ]


@final
class ConductedSessionPage:
    """Serves /ui/sessions/{session}; a tenant sees only its own sessions."""

    def __init__(self, catalogue: Catalogue, store: Store | None, page_runs: PageRuns) -> None:
        self._catalogue = catalogue
        self._page_runs = page_runs
        self._store = store

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show a session's figures, running requests, switches, and a page of its requests.

        The requests are in order, oldest first.

        Raises:
            APIError: the visitor has no such session, the session has no request with the number in
                the URL, or there is no store.
        """
        store = require_part(self._store, "This server keeps no runs.")
        name: str = request.path_params["session"]
        course = SessionCourse(await read_session(store.database, name, session.tenant))
        running = [run for run in self._page_runs.unfinished(session) if run.session == name]
        if not course.requests and not running:
            raise not_found(f"The session '{name[:80]}'")
        first = _read_first(request, max(len(course.requests), 1))
        shown = await _read_page(store, course, first)
        saved = await list_savings(store.database, 1, tenant=session.tenant, session=name)
        beginning = shown[:1] if first == 1 else await _read_page(store, course, 1, 1)
        question = beginning[0].run.question_preview if beginning else ""
        tenant = beginning[0].run.tenant if beginning else ""
        if not course.requests:
            question, tenant = running[-1].question, running[-1].tenant
        pool = self._catalogue.pool
        return render_page(
            request,
            "conducted_session.html.jinja",
            session=session,
            name=name,
            question=question,
            tenant=tenant,
            running=running,
            course=course,
            colours={worker: worker_colour(pool, worker) for worker in course.parts},
            turns=course.group(shown),
            first=first,
            page_size=PAGE_SIZE,
            most_switches=MOST_SWITCHES,
            charts=course.draw(),
            saving=saved[0] if saved and saved[0].runs else None,
        )


def _cached_share(request: SessionRequest) -> float | None:
    return request.cached_tokens / request.input_tokens if request.input_tokens else None


def _read_first(request: Request, count: int) -> int:
    """Return the number of the first request to show.

    Raises:
        APIError: the session has no request with that number.
    """
    given = request.query_params.get("from", "1")
    number = read_small_number(given)
    if number is None or not 1 <= number <= count:
        raise invalid_value("from", f"it must be the number of a request, from 1 to {count}.")
    return number


async def _read_page(
    store: Store, course: SessionCourse, first: int, count: int = PAGE_SIZE
) -> list[ShownRequest]:
    """Return up to `count` requests from the number `first`, without deleted ones."""
    requests = course.requests[first - 1 : first - 1 + count]
    found = {run.id: run for run in await read_requests(store.database, requests)}
    return [
        ShownRequest(number=number, request=each, run=found[each.id])
        for number, each in enumerate(requests, first)
        if each.id in found
    ]

"""The screens of the stored runs: a searchable, filtered list, and the details of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from batuta.clients import WorkerHealth
from batuta.core import Outcome, Reply
from batuta.core.formatting import format_cost, format_count, format_seconds
from batuta.errors import StoreError
from batuta.gateway.access.caller import CallerRole, record_export, record_reading
from batuta.gateway.errors import invalid_value, not_found, require_part
from batuta.gateway.http.stored_reads import in_pieces, read_stored_run
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui import run_view
from batuta.gateway.ui.page_runs import ClientRun, PageRun, PageRuns
from batuta.gateway.ui.playground import is_too_large, load_run
from batuta.gateway.ui.rendering import (
    PAGE_HEADERS,
    PageResponse,
    redirect_to,
    render_answers,
    render_fragment,
    render_page,
)
from batuta.gateway.ui.session import WebSession, read_form
from batuta.rendering.answer import render_answer
from batuta.store import RunSummary, Store, read_run
from batuta.store.run_filter import (
    EVERY_RUN,
    RUN_PARAMETERS,
    RunFilter,
    RunFilterError,
    RunSort,
    parse_run_filter,
)
from batuta.store.run_list import RunPage, RunTotals

RUNS_PATH = "/ui/runs"
FILTER_FIELDS = (
    ("since", "Since", "24h, 7d, today, 2026-11-21"),
    ("until", "Until", "now"),
    ("worker", "Worker", "any"),
    ("error", "Error", "any; timed_out"),
    ("session", "Session", "any"),
    ("user", "User", "any"),
    ("tag", "Tag", "any; app=web"),
    ("min_cost", "$ at least", "0"),
    ("max_cost", "$ at most", "any"),
    ("min_seconds", "Seconds at least", "0"),
    ("max_seconds", "Seconds at most", "any"),
    ("min_tokens", "Tokens at least", "0"),
    ("max_tokens", "Tokens at most", "any"),
    ("min_score", "Score at least", "any"),
    ("max_score", "Score at most", "any"),
)
"""The text fields of "More filters": parameter, label and placeholder."""
SORTS = {
    RunSort.CREATED: "Newest",
    RunSort.COST: "Cost",
    RunSort.SECONDS: "Time",
    RunSort.TOKENS: "Tokens",
    RunSort.SCORE: "Score",
}
_LABELS = {
    "q": "Search",
    "model": "System",
    "outcome": "Outcome",
    "tenant": "Tenant",
    "judged": "Judged",
    **{name: label for name, label, _ in FILTER_FIELDS},
}
_ORDER = ("sort", "order")


@dataclass(frozen=True, slots=True)
class ActiveFilter:
    """A filter that is set, and the URL of the list without it."""

    label: str
    value: str
    address: str


@final
class ShownFilter:
    """The filter in a URL, and the URLs of the list with changed filters."""

    def __init__(self, given: Iterable[tuple[str, str]], tenant: str | None) -> None:
        """Parse the filter; if that fails, `problem` is set and no runs are to be shown.

        Args:
            given: the query parameters; those that are no filters are ignored.
            tenant: the only tenant whose runs may be shown; None for all tenants.
        """
        self.given = [
            (name, text.strip())
            for name, text in given
            if name in RUN_PARAMETERS and text.strip() and not (name == "tenant" and tenant)
        ]
        self.problem = ""
        """Why the filter is invalid; empty if it is valid."""
        self.run_filter: RunFilter = EVERY_RUN
        try:
            self.run_filter = parse_run_filter(self.given)
        except RunFilterError as error:
            self.problem = f"{_LABELS.get(error.name, error.name)}: {error}"
        if tenant is not None:
            self.run_filter = replace(self.run_filter, tenant=tenant)

    def value(self, name: str) -> str:
        """Return the given value of a parameter; empty if it was not given."""
        return next((text for given, text in self.given if given == name), "")

    @property
    def further_tags(self) -> list[str]:
        """The tags after the first one, which is shown in the form's field."""
        return [text for name, text in self.given if name == "tag"][1:]

    @property
    def active(self) -> list[ActiveFilter]:
        """The filters that are set, except for the sort order."""
        return [
            ActiveFilter(_LABELS[name], text, self._address(self._without(at)))
            for at, (name, text) in enumerate(self.given)
            if name not in _ORDER
        ]

    @property
    def is_folded_out(self) -> bool:
        """Return True if a field of "More filters" is set."""
        hidden = {name for name, _, _ in FILTER_FIELDS} | {"judged"}
        return any(name in hidden for name, _ in self.given)

    @property
    def matches_running(self) -> bool:
        """Return True if running runs can match.

        They are matched by text, system, tenant and session only; any other filter, or a sort
        order, excludes them.
        """
        return all(name in {"q", "model", "tenant", "session"} for name, _ in self.given)

    def sorted_by(self, name: str) -> str:
        """Return the URL of the list sorted by that column, or reversed if it is already."""
        sort = RunSort(name)
        is_first = self.run_filter.sort is not sort
        order = [] if sort is RunSort.CREATED else [("sort", sort.value)]
        order += [] if is_first or self.run_filter.ascending else [("order", "asc")]
        return self._address([pair for pair in self.given if pair[0] not in _ORDER] + order)

    def direction(self, name: str) -> str:
        """Return the `aria-sort` value of a column; empty if the list is not sorted by it."""
        if self.run_filter.sort is not RunSort(name):
            return ""
        return "ascending" if self.run_filter.ascending else "descending"

    def page_after(self, cursor: str | None) -> str:
        """Return the URL of the page after that cursor; None for the first page."""
        return self._address([*self.given, *([("after", cursor)] if cursor else [])])

    def _without(self, position: int) -> list[tuple[str, str]]:
        return [pair for at, pair in enumerate(self.given) if at != position]

    def _address(self, pairs: Sequence[tuple[str, str]]) -> str:
        return f"{RUNS_PATH}?{urlencode(pairs)}" if pairs else RUNS_PATH


def describe_totals(totals: RunTotals) -> Iterator[tuple[str, str]]:
    """Yield the figures above the list as pairs of name and value."""
    yield "Runs", format_count(totals.runs)
    if totals.unanswered:
        yield "Without an answer", format_count(totals.unanswered)
    yield "Cost", format_cost(totals.cost)
    yield "Tokens", format_count(totals.input_tokens + totals.output_tokens)
    if totals.median_seconds is not None and totals.p95_seconds is not None:
        yield "Median time", format_seconds(totals.median_seconds)
        yield "95th percentile", format_seconds(totals.p95_seconds)
    if totals.mean_score is not None:
        yield "Mean score", f"{totals.mean_score:.2f} of {format_count(totals.judged)}"


PAGE_SIZE = 50
_BAD_REQUEST = 400


@final
class RunPages:
    """Serves the screens below /ui/runs."""

    def __init__(self, catalogue: Catalogue, store: Store | None, page_runs: PageRuns) -> None:
        self._catalogue = catalogue
        self._page_runs = page_runs
        self._optional_store = store

    async def list_page(self, request: Request, session: WebSession) -> Response:
        """Show the runs that match a filter, in the filter's order, with their totals.

        Raises:
            APIError: the cursor of the page is invalid.
        """
        query = request.query_params
        shown, after = ShownFilter(query.multi_items(), session.tenant), query.get("after") or None
        page, totals = await self._find(shown, after)
        running = self._running(shown, session) if after is None else []
        return render_page(
            request,
            "runs.html.jinja",
            status=_BAD_REQUEST if shown.problem else 200,
            session=session,
            shown=shown,
            rows=[] if page is None else page.rows,
            totals=None if totals is None else list(describe_totals(totals)),
            searched_to=_searched_to(page, totals),
            running=running,
            older=None if page is None else page.next_cursor,
            is_first=after is None,
            fields=FILTER_FIELDS,
            sorts=SORTS,
            models=await self._models(session),
            workers=[worker.id for worker in self._catalogue.pool],
            outcomes=[outcome.value for outcome in Outcome],
            kept=self._optional_store is not None,
        )

    async def run_page(self, request: Request, session: WebSession) -> Response:
        """Show a run's workflow, time, steps and answer, or follow a run that is still running.

        Raises:
            APIError: the run does not exist or cannot be read now, or the server keeps no runs.
        """
        page_run = await self._page_runs.find_running(request.path_params["id"], session)
        if page_run is not None:
            if self._optional_store is not None:
                await record_reading(
                    self._optional_store, session.caller, page_run.id, page_run.tenant
                )
            return render_page(request, "live_run.html.jinja", session=session, run=page_run)
        summary = await self._summary(request, session)
        await record_reading(self._store, session.caller, summary.id, summary.tenant)
        encoded = await read_stored_run(self._store, summary.id, session.tenant, session.scope)
        is_large = encoded is not None and is_too_large(encoded)
        run = None if encoded is None or is_large else await read_run(encoded)
        answers = await render_answers(run)
        return render_page(
            request,
            "run.html.jinja",
            session=session,
            row=summary,
            run=run,
            answers=answers,
            is_large=is_large,
            causes=self._causes(session),
        )

    async def stop(self, request: Request, session: WebSession) -> Response:
        """Stop a run, wait some seconds for its end, and redirect to it, its session or the list.

        A run that has already ended is not changed. The page's script gets an empty response.

        Raises:
            APIError: the run does not exist, or the form is not from one of our pages.
        """
        form = await read_form(request, session)
        run_id: str = request.path_params["id"]
        unfinished = self._page_runs.unfinished(session)
        run = next((each for each in unfinished if each.id == run_id), None)
        if run is None:
            of_session = (await self._summary(request, session)).session
        else:
            of_session = run.session
            run.stop()
            await run.wait_for_end()
            if self._optional_store is not None:
                with suppress(StoreError):  # the run is written later and then appears in the list
                    await self._optional_store.flush()
        if (origin := form.get("from", "")) == "script":
            return PageResponse("")
        targets = {"list": RUNS_PATH, "session": f"/ui/sessions/{quote(of_session or '')}"}
        return redirect_to(targets.get(origin, f"{RUNS_PATH}/{run_id}"))

    async def export(self, request: Request, session: WebSession) -> Response:
        """Send the whole run as JSON, in the form of the API's trace.

        Raises:
            APIError: the run does not exist, or its content was not stored or cannot be read now.
        """
        run_id: str = request.path_params["id"]
        encoded = await read_stored_run(self._store, run_id, session.tenant, session.scope)
        if encoded is None:
            raise not_found(f"The run '{run_id[:80]}', or its content,")
        tenant = (await self._summary(request, session)).tenant
        await record_export(self._store, session.caller, run_id, tenant)
        name = "".join(c for c in run_id if c.isalnum() or c in "_-")
        headers = {**PAGE_HEADERS, "content-disposition": f'attachment; filename="{name}.json"'}
        headers["content-length"] = str(len(encoded))
        return StreamingResponse(in_pieces(encoded), 200, headers, "application/json")

    async def reply(self, request: Request, session: WebSession) -> Response:
        """Send the reply of a step as HTML, rendered like an answer.

        Raises:
            APIError: the run cannot be shown, or the step has no reply.
        """
        run_id: str = request.path_params["id"]
        run = await load_run(self._optional_store, self._page_runs, run_id, session)
        step = run_view.find_step(run, request.path_params["place"])
        if step is None or not isinstance(step.result, Reply):
            raise not_found("The reply")
        return PageResponse(await render_answer(step.result.text))

    async def feedback(self, request: Request, session: WebSession) -> Response:
        """Store a run's score and comment; an empty score removes an earlier score.

        Fields for the comment that are not in the form keep their parts of the earlier comment.

        Raises:
            APIError: the run does not exist, the score is invalid, or the form is not from one of
                our pages.
        """
        form = await read_form(request, session)
        given = form.get("score", "")
        summary = await self._summary(request, session)
        known = "" if summary.score is None else str(summary.score)
        if given not in {"", "0", "1", known}:
            raise invalid_value("score", "it must be 0 or 1, or empty.")
        score = float(given) if given else None
        expected, rest = run_view.split_comment(summary.score_comment or "")
        comment = run_view.join_comment(
            form.get("expected", expected)[:500], form.get("comment", rest)[:4000]
        )
        await self._store.score(summary.id, score, comment, session.tenant)
        if request.headers.get("x-fragment"):
            values = {
                "id": summary.id,
                "score": score,
                "token": session.token,
                "comment": comment if "expected" in form else None,
            }
            return PageResponse(render_fragment("feedback.html.jinja", **values))
        return redirect_to(f"/ui/runs/{summary.id}")

    def _causes(self, session: WebSession) -> dict[str, WorkerHealth]:
        """Return the health of the workers with a failure; empty for visitors with a key."""
        if session.caller.role is CallerRole.KEY:
            return {}
        health = self._catalogue.health.items()
        return {str(worker): each for worker, each in health if each.error}

    def _running(self, shown: ShownFilter, session: WebSession) -> list[PageRun | ClientRun]:
        """Return the running runs that match the filter and that the visitor may see."""
        if not shown.matches_running or shown.problem:
            return []
        run_filter, words = shown.run_filter, shown.run_filter.search.casefold()
        return [
            run
            for run in self._page_runs.unfinished(session)
            if run_filter.model in {None, run.model}
            and run_filter.tenant in {None, run.tenant}
            and run_filter.session in {None, run.session}
            and (words in run.question.casefold() or run.id.startswith(run_filter.search))
        ]

    async def _find(
        self, shown: ShownFilter, after: str | None
    ) -> tuple[RunPage | None, RunTotals | None]:
        """Return a page of runs, and for the first page the totals of the matching runs.

        Both are None if there is no store or the filter is invalid.

        Raises:
            APIError: `after` is not a cursor of the list.
        """
        if self._optional_store is None or shown.problem:
            return None, None
        try:
            if after is not None:
                return await self._store.find(shown.run_filter, PAGE_SIZE, after), None
        except ValueError:
            raise invalid_value("after", "it is not a cursor of this list.") from None
        page = await self._store.find(shown.run_filter, PAGE_SIZE)
        return page, await self._store.totals(shown.run_filter)

    async def _models(self, session: WebSession) -> list[str]:
        """Return the served systems and, for visitors who see all runs, those of past runs."""
        served = [model.name for model in self._catalogue.models]
        if self._optional_store is None or session.tenant is not None:
            return served
        return list(dict.fromkeys([*served, *await self._store.models()]))

    async def _summary(self, request: Request, session: WebSession) -> RunSummary:
        run_id: str = request.path_params["id"]
        summary = await self._store.summary(run_id, session.tenant)
        if summary is None:
            raise not_found(f"The run '{run_id[:80]}'")
        return summary

    @property
    def _store(self) -> Store:
        return require_part(self._optional_store, "This server keeps no runs.")


def _searched_to(page: RunPage | None, totals: RunTotals | None) -> float | None:
    """Return the start time of the last run searched; None unless the search stopped early."""
    found = totals or page
    return None if found is None else found.searched_to

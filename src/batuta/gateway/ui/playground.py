"""The playground: a question asked, its workflow seen while it is written and executed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from batuta.conductors.replay_conductor import ReplayConductor
from batuta.config.aliases import ULTRA_MODEL
from batuta.config.effort import EFFORTS
from batuta.core import (
    CallListener,
    Conductor,
    Decision,
    Delta,
    Failure,
    PlanningContext,
    Run,
    Worker,
)
from batuta.core import (
    Request as CallRequest,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.gateway.access.caller import record_reading
from batuta.gateway.chat.request import parse_chat
from batuta.gateway.errors import APIError, invalid_value, not_found
from batuta.gateway.http.body import Fields, read_fields
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.baselines import BASELINE_PREFIX
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.gateway.serving.models import WORKER_PREFIX, Catalogue, ServedModel
from batuta.gateway.serving.parsed_call import ParsedCall, parse_run_options
from batuta.gateway.ui.page_runs import PageRun, PageRuns
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_page
from batuta.gateway.ui.run_view import panel_scope
from batuta.gateway.ui.session import SessionManager, WebSession, check_form_token
from batuta.store import Store, read_run

ShowDraft = Callable[[str], Awaitable[None]]


@final
class StreamedConductor:
    """The conductor `inner`, with somebody who listens."""

    def __init__(self, inner: Conductor, show_draft: ShowDraft) -> None:
        self._inner = inner
        self._show_draft = show_draft

    @property
    def name(self) -> str:
        """The conductor's own."""
        return self._inner.name

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The conductor's decision."""
        return await self._inner.plan(context, _DraftListener(listener, self._show_draft))


@final
class _DraftListener:
    """Passes on what the engine must know, and tells the rest."""

    streaming = True

    def __init__(self, listener: CallListener, show_draft: ShowDraft) -> None:
        self._listener = listener
        self._show_draft = show_draft

    async def before_call(self, request: CallRequest, worker: Worker) -> CallRequest:
        """The request as it may be made.

        Raises:
            LimitReachedError: it may cost more than is left.
        """
        return await self._listener.before_call(request, worker)

    async def on_delta(self, delta: Delta) -> None:
        """A fragment of the draft."""
        await self._listener.on_delta(delta)
        if text := delta.text or delta.reasoning:
            await self._show_draft(text)

    async def on_failure(self, failure: Failure) -> None:
        """An attempt failed; the next one begins a new draft.

        Raises:
            LimitReachedError: no further attempt may be paid for.
        """
        await self._listener.on_failure(failure)
        await self._show_draft("\n")


_SEE_OTHER = 303
MOST_PARTS = 5000
"""JSON objects of a stored run that is read to be shown: about 40 ms of the event loop."""
ModelGroups = tuple[tuple[str, tuple[ServedModel, ...]], ...]


def group_models(models: Iterable[ServedModel]) -> ModelGroups:
    """The served models as a list of choices shows them."""
    known = tuple(models)
    workers = tuple(each for each in known if each.name.startswith(WORKER_PREFIX))
    baselines = tuple(each for each in known if each.name.startswith(BASELINE_PREFIX))
    rest = tuple(each for each in known if each not in workers and each not in baselines)
    named = (("Batuta", rest), ("Published methods", baselines), ("One worker", workers))
    return tuple((name, members) for name, members in named if members)


def default_model(catalogue: Catalogue) -> str:
    """Return the model that is asked unless somebody chooses."""
    return ULTRA_MODEL if catalogue.find_model(ULTRA_MODEL) else catalogue.models[0].name


@final
class PlaygroundPage:
    """The screen."""

    def __init__(self, catalogue: Catalogue, store: Store | None, page_runs: PageRuns) -> None:
        self._catalogue = catalogue
        self._store = store
        self._page_runs = page_runs

    async def page(self, request: Request, session: WebSession) -> Response:
        """The composer; `again` fills it with a run's question, `replay` repeats its workflow."""
        query, catalogue = request.query_params, self._catalogue
        given = query.get("again") or query.get("replay")
        run = await load_run(self._store, self._page_runs, given, session) if given else None
        model = query.get("model") or (run.header.model if run else "")
        limits = run.header.limits if run else None
        chosen = {worker.id for worker in run.header.pool} if run else set[str]()
        return render_page(
            request,
            "playground.html.jinja",
            session=session,
            question=run.header.question.text if run else query.get("question", ""),
            served=group_models(
                m for m in catalogue.models if session.caller.permissions.allows_model(m.name)
            ),
            model=model if catalogue.find_model(model) else default_model(catalogue),
            efforts=EFFORTS,
            chosen_effort=run.header.question.sampling.effort if run else None,
            max_cost="" if limits is None or limits.usd is None else limits.usd,
            deadline="",
            pool=catalogue.pool,
            workers=chosen,
            replay=query.get("replay"),
            examples=catalogue.page_context.examples if run is None else (),
            simulated=catalogue.page_context.simulated,
        )


@final
class PlaygroundEndpoint:
    """POST /ui/ask: the body of a chat completion; begins a run.

    In its place, `replay` with a run's id repeats that run, and `edit` with one answers its
    question by the workflow in `orchestration`.

    It is booked and executed like a call of the API, under the same rules and limits. The answer
    is the address of its events; the request continues behind the answer until the run has ended.
    """

    def __init__(
        self,
        delivery: AnswerDelivery,
        store: Store | None,
        sessions: SessionManager,
        page_runs: PageRuns,
    ) -> None:
        self._delivery = delivery
        self._page_runs = page_runs
        self._store = store
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the run was not begun.
        """
        visitor = self._sessions.identify_signed_in(Request(scope, receive))
        check_form_token(visitor, Request(scope).headers.get("x-token"))
        body = await read_fields(scope, receive)
        replayed, edited = body.text("replay"), body.text("edit")
        run = None
        if given := replayed or edited:
            run = await load_run(self._store, self._page_runs, given, visitor)
        call = _read_call(body, run)
        delivery = self._delivery
        async with delivery.service.prepare_call(call, visitor.caller) as prepared:
            planned = prepared
            if run is not None and replayed:
                planned = self._with_recorded_plan(prepared, run)
            with self._page_runs.track(prepared, visitor) as page_run:
                address = f"/ui/runs/{page_run.id}/events?scope={panel_scope(body.text('scope'))}"
                headers = {**PAGE_HEADERS, **prepared.headers}
                await RedirectResponse(address, _SEE_OTHER, headers)(scope, receive, send)
                streamed = _stream_drafts(planned, page_run)
                await delivery.stream_answer(streamed, page_run, None, page_run.wait_for_stop)

    def _with_recorded_plan(self, prepared: PreparedCall, run: Run) -> PreparedCall:
        """The prepared call, conducted as the run was."""
        recorded = ReplayConductor(run)
        for worker in recorded.workers:
            if worker not in prepared.pool:
                message = f"The worker '{worker}' of that run is not in the pool any more."
                raise APIError(409, "conflict", message)
        served = replace(prepared.served_model, conductor=recorded, solver=None, direct=False)
        steps = max((len(flow.workflow) for flow in run.rounds if flow.workflow), default=1)
        limits = replace(
            prepared.limits,
            steps=max(steps, prepared.limits.steps),
            rounds=max(len(run.rounds), 1),
        )
        return replace(prepared, served_model=served, limits=limits)


async def load_run(
    store: Store | None, page_runs: PageRuns, run_id: str, session: WebSession
) -> Run:
    """The run of that id, if the visitor may see it; one that is being stopped is waited for.

    Raises:
        APIError: there is none, it goes on, its content was not kept, or it is too large.
    """
    await page_runs.check_ended(run_id, session)
    encoded = None if store is None else await store.get_encoded(run_id, session.tenant)
    if encoded is None:
        raise not_found(f"The run '{run_id[:80]}', or its content,")
    if is_too_large(encoded):
        raise invalid_value("run", "it has too many parts to be shown; it can be exported.")
    if store is not None and session.is_admin:
        summary = await store.summary(run_id)
        tenant = "" if summary is None else summary.tenant
        await record_reading(store, session.caller, run_id, tenant)
    return await read_run(encoded)


def is_too_large(encoded: bytes) -> bool:
    """Return True if showing the stored run, of so many parts, would hold everybody else up."""
    return encoded.count(b"{") > MOST_PARTS


def _stream_drafts(prepared: PreparedCall, page_run: PageRun) -> PreparedCall:
    """The prepared call, its conductor seen while it writes."""
    served = prepared.served_model
    if served.conductor is None:
        return prepared
    conductor = StreamedConductor(served.conductor, page_run.show_draft)
    return replace(prepared, served_model=replace(served, conductor=conductor))


def _read_call(body: Fields, run: Run | None) -> ParsedCall:
    """Return what the body asks; `run` is the one that it repeats or edits.

    Raises:
        APIError: the body is malformed.
    """
    if run is None:
        return parse_chat(_drop_fields(body, "replay", "edit", "scope"))
    return _repeat_call(run) if body.text("replay") else edited_call(run, body)


def _repeat_call(run: Run) -> ParsedCall:
    return ParsedCall(model=run.header.model or ULTRA_MODEL, question=run.header.question)


def edited_call(run: Run, body: Fields) -> ParsedCall:
    """Return the question of the run, to be answered by the workflow in the body.

    Raises:
        APIError: the body is malformed or has no workflow.
    """
    options = parse_run_options(body)
    if options.workflow is None:
        raise invalid_value("orchestration.workflow", "a plan needs at least one step.")
    return ParsedCall(model=body.need_text("model"), question=run.header.question, options=options)


def _drop_fields(body: Fields, *names: str) -> Fields:
    return Fields({name: value for name, value in body.raw.items() if name not in names})

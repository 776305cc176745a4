"""The playground: ask a question and watch its workflow while it is planned and executed."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import time
from typing import Any, final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
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
    Question,
    Run,
    RunId,
    Sampling,
    Worker,
)
from batuta.core import (
    Request as CallRequest,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.gateway.access.caller import record_reading
from batuta.gateway.chat.request import parse_chat
from batuta.gateway.errors import APIError, invalid_value, not_found
from batuta.gateway.http.body import Fields, encode_json, read_fields
from batuta.gateway.http.stored_reads import read_stored_run
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.baselines import BASELINE_PREFIX
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.gateway.serving.models import WORKER_PREFIX, Catalogue, ServedModel
from batuta.gateway.serving.parsed_call import ParsedCall, parse_run_options
from batuta.gateway.ui.conversation import Conversation, encode_question, show_sampling
from batuta.gateway.ui.page_runs import PageRun, PageRuns
from batuta.gateway.ui.rendering import PAGE_HEADERS, redirect_to, render_answers, render_page
from batuta.gateway.ui.run_view import panel_scope
from batuta.gateway.ui.session import SessionManager, WebSession, check_form_token
from batuta.store import RunSummary, Store, read_run
from batuta.store.responses import response_id
from batuta.store.rows import TAG, RequestLabels, format_label
from batuta.store.run_filter import RunFilter

ShowDraft = Callable[[str], Awaitable[None]]


@final
class StreamedConductor:
    """Wraps the conductor `inner`, and passes fragments of its drafts to `show_draft`."""

    def __init__(self, inner: Conductor, show_draft: ShowDraft) -> None:
        self._inner = inner
        self._show_draft = show_draft

    @property
    def name(self) -> str:
        """The name of the wrapped conductor."""
        return self._inner.name

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Return the conductor's decision, and show its drafts while they are written."""
        return await self._inner.plan(context, _DraftListener(listener, self._show_draft))


@final
class _DraftListener:
    """Forwards notifications to the engine's listener, and shows the text of drafts."""

    streaming = True

    def __init__(self, listener: CallListener, show_draft: ShowDraft) -> None:
        self._listener = listener
        self._show_draft = show_draft

    async def before_call(self, request: CallRequest, worker: Worker) -> CallRequest:
        """Return the request, possibly with a lower output limit.

        Raises:
            LimitReachedError: the call may cost more than the remaining budget.
        """
        return await self._listener.before_call(request, worker)

    async def on_delta(self, delta: Delta) -> None:
        await self._listener.on_delta(delta)
        if text := delta.text or delta.reasoning:
            await self._show_draft(text)

    async def on_failure(self, failure: Failure) -> None:
        """Forward the failed attempt and show a line break; the next attempt begins a new draft.

        Raises:
            LimitReachedError: the budget allows no further attempt.
        """
        await self._listener.on_failure(failure)
        await self._show_draft("\n")


PLAYGROUND_TAG = "playground"
"""The tag of runs started in the playground."""
MOST_TURNS = 20
"""Maximum number of turns of a conversation that are shown; the list of runs has all."""
MOST_RECENT = 6
"""Maximum number of recent conversations listed for a new question."""
_MOST_SEARCHED = 60
"""Maximum number of runs searched for a conversation's turns, or for the recent conversations."""
_RECENT_SECONDS = 30 * 86_400.0
_ORIGINS = ("replay", "edit", "follow", "again", "results")
"""Fields of a body that refer to an earlier run by its id."""
MOST_PARTS = 5000
"""Maximum number of JSON objects in a stored run that is shown.

Showing a run of this size blocks the event loop for about 40 ms.
"""
ModelGroups = tuple[tuple[str, tuple[ServedModel, ...]], ...]


def group_models(models: Iterable[ServedModel]) -> ModelGroups:
    """Return the groups of the selection list with their served models, without empty groups."""
    known = tuple(models)
    workers = tuple(each for each in known if each.name.startswith(WORKER_PREFIX))
    baselines = tuple(each for each in known if each.name.startswith(BASELINE_PREFIX))
    rest = tuple(each for each in known if each not in workers and each not in baselines)
    named = (("Batuta", rest), ("Published methods", baselines), ("One worker", workers))
    return tuple((name, members) for name, members in named if members)


def default_model(catalogue: Catalogue) -> str:
    """Return the model that is selected by default."""
    return ULTRA_MODEL if catalogue.find_model(ULTRA_MODEL) else catalogue.models[0].name


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A question of a conversation, with the run that answers it."""

    number: int
    """Position among the shown turns, from 1; part of the HTML ids of the turn's panels."""
    id: str
    question: str
    run: Run | None = None
    """None if the run is still running, or its content cannot be shown."""
    is_running: bool = False


@dataclass(slots=True, kw_only=True)
class RecentChat:
    """A conversation of the playground."""

    session: str
    question: str
    """The earliest question among the searched runs."""
    created: float
    """Time of the latest question, in seconds since the epoch."""
    turns: int = 1
    """The number of questions among the searched runs."""


@final
class PlaygroundPage:
    """Serves /ui/ (a new conversation) and /ui/chat/{session} (an existing one)."""

    def __init__(self, catalogue: Catalogue, store: Store | None, page_runs: PageRuns) -> None:
        self._catalogue = catalogue
        self._store = store
        self._page_runs = page_runs

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the form for a new question.

        The query parameter `again` fills in the question of a run; `replay` prepares a repetition
        of a run's workflow.

        Raises:
            APIError: that run cannot be shown.
        """
        query = request.query_params
        given = query.get("again") or query.get("replay")
        run = await load_run(self._store, self._page_runs, given, session) if given else None
        return self._show(
            request,
            session,
            run=run,
            question=run.header.question.text if run else query.get("question", ""),
            again=query.get("again") if run else None,
            replay=query.get("replay") if run else None,
            examples=self._catalogue.page_context.examples if run is None else (),
            recent=await self._list_recent(session) if run is None else [],
        )

    async def chat(self, request: Request, session: WebSession) -> Response:
        """Show the turns of a conversation with their workflows, above the form.

        Raises:
            APIError: the visitor has no such conversation.
        """
        name: str = request.path_params["session"]
        turns, earlier = await self._load_turns(name, session)
        if not turns:
            raise not_found(f"The conversation '{name[:80]}'")
        runs = [turn.run for turn in turns if turn.run is not None]
        answered = [run for run in runs if run.answer]
        return self._show(
            request,
            session,
            run=runs[-1] if runs else None,
            turns=turns,
            earlier=earlier,
            chat=name,
            follow=(answered or runs)[-1].id if runs else None,
            answers=await render_answers(*runs),
        )

    def _show(
        self, request: Request, session: WebSession, *, run: Run | None, **values: Any
    ) -> Response:
        catalogue, query = self._catalogue, request.query_params
        model = query.get("model") or (run.header.model if run else "")
        limits = run.header.limits if run else None
        allows = session.caller.permissions.allows_model
        settings: dict[str, Any] = {
            "question": "",
            "model": model if catalogue.find_model(model) else default_model(catalogue),
            "chosen_effort": run.header.question.sampling.effort if run else None,
            "sampling": show_sampling(run.header.question.sampling if run else Sampling()),
            "max_cost": "" if limits is None or limits.usd is None else limits.usd,
            "workers": self._chosen_workers(run) if run else set[str](),
            "kept": Conversation(run) if run else None,
        }
        none: dict[str, Any] = dict.fromkeys(("again", "replay", "follow", "chat"))
        lists: dict[str, Any] = {"turns": [], "earlier": 0, "examples": (), "recent": []}
        shown: dict[str, Any] = {"answers": {}, **none, **lists, **settings, **values}
        return render_page(
            request,
            "playground.html.jinja",
            session=session,
            served=group_models(m for m in catalogue.models if allows(m.name)),
            efforts=EFFORTS,
            pool=catalogue.pool,
            simulated=catalogue.page_context.simulated,
            **shown,
        )

    def _chosen_workers(self, run: Run) -> set[str]:
        """Return the workers that the run was restricted to; empty if it was not restricted."""
        served = self._catalogue.find_model(run.header.model or "")
        took_part = {str(worker.id) for worker in run.header.pool}
        whole = served is not None and {str(worker.id) for worker in served.pool} <= took_part
        return set() if whole else took_part

    async def _load_turns(self, name: str, session: WebSession) -> tuple[list[ChatTurn], int]:
        """Return a conversation's latest turns, oldest first, and the number found before them."""
        running = {r.id: r for r in self._page_runs.running(session) if r.session == name}
        rows: Sequence[RunSummary] = ()
        if self._store is not None:
            run_filter = RunFilter(tenant=session.tenant, session=name)
            rows = (await self._store.find(run_filter, _MOST_SEARCHED)).rows
        ended = [row for row in reversed(rows) if row.id not in running]
        shown = ended[-MOST_TURNS:]
        turns = [
            ChatTurn(
                number=number,
                id=row.id,
                question=row.question_preview,
                run=await self._load_turn(row, session),
            )
            for number, row in enumerate(shown, 1)
        ]
        turns += [
            ChatTurn(number=number, id=run.id, question=run.question, is_running=True)
            for number, run in enumerate(reversed(running.values()), len(turns) + 1)
        ]
        return turns, len(ended) - len(shown)

    async def _load_turn(self, row: RunSummary, session: WebSession) -> Run | None:
        try:
            return await load_run(self._store, self._page_runs, row.id, session)
        except APIError:
            return None  # the content cannot be shown

    async def _list_recent(self, session: WebSession) -> list[RecentChat]:
        """Return recent playground conversations of the visitor's tenant, newest first.

        The list is empty for an administrator and without a store.
        """
        if self._store is None or session.is_admin:
            return []
        labels = (format_label(TAG, PLAYGROUND_TAG),)
        since = time() - _RECENT_SECONDS
        run_filter = RunFilter(tenant=session.tenant, labels=labels, since=since)
        found: dict[str, RecentChat] = {}
        for row in (await self._store.find(run_filter, _MOST_SEARCHED)).rows:
            if row.session is None or not row.question_preview:
                continue
            if row.session in found:
                found[row.session].turns += 1
                found[row.session].question = row.question_preview
            elif len(found) < MOST_RECENT:
                found[row.session] = RecentChat(
                    session=row.session, question=row.question_preview, created=row.created
                )
        return list(found.values())


class ScriptEndpoint:
    """Base of the endpoints that the page's script calls to start, inspect or follow runs."""

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

    async def _read(self, scope: Scope, receive: Receive) -> tuple[WebSession, Fields]:
        """Identify the visitor, check the page's token, and read the body of the request.

        Raises:
            ClientGone: the client has disconnected.
            APIError: the visitor has not signed in, or the request is not from one of our pages or
                is malformed.
        """
        request = Request(scope)
        visitor = self._sessions.identify_signed_in(request)
        check_form_token(visitor, request.headers.get("x-token"))
        return visitor, await read_fields(scope, receive)


@final
class PlaygroundEndpoint(ScriptEndpoint):
    """POST /ui/ask: starts a run from the body of a chat completion.

    Further fields of the body name an earlier run by its id. `replay` repeats that run, and `edit`
    answers its question by the workflow in `orchestration`; both ignore the messages. `follow`
    continues its conversation, `again` rephrases its last question, and `results` answers its tool
    calls.

    The run is charged and executed like an API call, under the same rules and limits. The response
    redirects to the run's events; the request continues in the background until the run has ended.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the run cannot be started.
        """
        visitor, body = await self._read(scope, receive)
        origin, given = _find_origin(body)
        run = await load_run(self._store, self._page_runs, given, visitor) if given else None
        call = _read_call(body, origin, run)
        delivery = self._delivery
        async with delivery.service.prepare_call(call, visitor.caller) as prepared:
            planned = prepared
            if run is not None and origin == "replay":
                planned = self._with_recorded_plan(prepared, run)
            with self._page_runs.track(prepared) as page_run:
                marks = {"scope": panel_scope(body.text("scope")), "chat": prepared.session or ""}
                address = f"/ui/runs/{page_run.id}/events?{urlencode(marks)}"
                headers = {**PAGE_HEADERS, **prepared.headers}
                await redirect_to(address, headers)(scope, receive, send)
                streamed = _stream_drafts(planned, page_run)
                await delivery.stream_answer(streamed, page_run, None, page_run.wait_for_stop)

    def _with_recorded_plan(self, prepared: PreparedCall, run: Run) -> PreparedCall:
        """Return the prepared call with a conductor that repeats the run's workflows.

        Raises:
            APIError: a worker of the run is no longer in the pool.
        """
        recorded = ReplayConductor(run)
        for worker in recorded.workers:
            if worker not in prepared.pool:
                message = f"The worker '{worker}' of that run is no longer in the pool."
                raise APIError(409, "conflict", message)
        served = replace(prepared.served_model, conductor=recorded, solver=None, direct=False)
        steps = max((len(flow.workflow) for flow in run.rounds if flow.workflow), default=1)
        limits = replace(
            prepared.limits,
            steps=max(steps, prepared.limits.steps),
            rounds=max(len(run.rounds), 1),
        )
        return replace(prepared, served_model=served, limits=limits)


@final
class ApiBodyEndpoint(ScriptEndpoint):
    """POST /ui/body: turns the playground's body into the complete body of an API request.

    The result includes the history of an earlier run. No worker is called, and nothing is reserved
    or stored.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the visitor may not use the page, the body is malformed, or the run cannot be
                shown.
        """
        visitor, body = await self._read(scope, receive)
        origin, given = _find_origin(body)
        run = await load_run(self._store, self._page_runs, given, visitor) if given else None
        call = _read_call(body, origin, run)
        fields = {**_drop_fields(body, *_ORIGINS, "scope").raw, **encode_question(call.question)}
        content = encode_json(fields)
        response = Response(content, media_type="application/json", headers=PAGE_HEADERS)
        await response(scope, receive, send)


async def load_run(
    store: Store | None, page_runs: PageRuns, run_id: str, session: WebSession
) -> Run:
    """Return the run of that id; if it is being stopped, wait for its end.

    Raises:
        APIError: the run does not exist, belongs to a tenant whose runs the visitor may not see,
            or is still running; or its content was not stored, is too large or cannot be read now.
    """
    await page_runs.check_ended(run_id, session)
    encoded = None
    if store is not None:
        encoded = await read_stored_run(store, run_id, session.tenant, session.scope)
    if encoded is None:
        raise not_found(f"The run '{run_id[:80]}', or its content,")
    if is_too_large(encoded):
        raise invalid_value("run", "it has too many parts to be shown; export it instead.")
    if store is not None and session.is_admin:
        summary = await store.summary(run_id)
        tenant = "" if summary is None else summary.tenant
        await record_reading(store, session.caller, run_id, tenant)
    return await read_run(encoded)


def is_too_large(encoded: bytes) -> bool:
    """Return True if showing the stored run would block the event loop for too long."""
    return encoded.count(b"{") > MOST_PARTS


def _stream_drafts(prepared: PreparedCall, page_run: PageRun) -> PreparedCall:
    """Return the prepared call with its conductor, if any, wrapped to show its drafts."""
    served = prepared.served_model
    if served.conductor is None:
        return prepared
    conductor = StreamedConductor(served.conductor, page_run.show_draft)
    return replace(prepared, served_model=replace(served, conductor=conductor))


def _find_origin(body: Fields) -> tuple[str, str]:
    """Return the field by which the body refers to an earlier run, and the run's id.

    Both are empty if the body refers to no run.
    """
    named = ((name, body.text(name)) for name in _ORIGINS)
    return next(((name, text) for name, text in named if text), ("", ""))


def _read_call(body: Fields, origin: str, run: Run | None) -> ParsedCall:
    """Return the body as a call; `run` is the earlier run to which it refers.

    Raises:
        APIError: the body is malformed, or does not fit that run.
    """
    if run is not None and origin == "replay":
        return ParsedCall(model=run.header.model or ULTRA_MODEL, question=run.header.question)
    if run is not None and origin == "edit":
        return edited_call(run, body)
    call = parse_chat(_drop_fields(body, *_ORIGINS, "scope"))
    call = replace(
        call, labels=RequestLabels(user=call.labels.user, tags=(*call.labels.tags, PLAYGROUND_TAG))
    )
    if run is None:
        return replace(call, session=call.session or f"playground {secrets.token_hex(16)}")
    kept = Conversation(run)
    if origin == "again":
        question = _use_own_tools(kept.ask_again(call.question), call.question, body)
        return replace(call, question=question, session=f"playground {secrets.token_hex(16)}")
    if origin == "results":
        question = kept.answer_calls(call.question)
        call = replace(call, model=run.header.model or call.model)
    else:
        question = _use_own_tools(kept.continue_with(call.question), call.question, body)
    return replace(call, question=question, session="", previous=response_id(RunId(run.id)))


def _use_own_tools(question: Question, asked: Question, body: Fields) -> Question:
    """Return the question with the tools of `asked` if the body has the field `tools`."""
    if not body.mentions({"tools"}) or asked.tools == question.tools:
        return question
    return replace(question, tools=asked.tools, tool_choice=asked.tool_choice)


def edited_call(run: Run, body: Fields) -> ParsedCall:
    """Return a call that answers the question of the run by the workflow in the body.

    Raises:
        APIError: the body is malformed or has no workflow.
    """
    options = parse_run_options(body)
    if options.workflow is None:
        raise invalid_value("orchestration.workflow", "a plan must have at least one step.")
    return ParsedCall(model=body.need_text("model"), question=run.header.question, options=options)


def _drop_fields(body: Fields, *names: str) -> Fields:
    return Fields({name: value for name, value in body.raw.items() if name not in names})

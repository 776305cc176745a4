"""The playground: a question asked, its workflow seen while it is written and executed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from batuta.core import Run
from batuta.gateway.access.caller import CallerRole, missing_key
from batuta.gateway.chat.request import parse_chat
from batuta.gateway.errors import APIError, invalid_value, not_found
from batuta.gateway.http.body import Fields, read_fields
from batuta.gateway.http.reader import SSEWriter
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.baselines import BASELINE_PREFIX
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.gateway.serving.effort import EFFORTS
from batuta.gateway.serving.models import ULTRA_MODEL, WORKER_PREFIX, Catalogue, ServedModel
from batuta.gateway.serving.parsed_call import ParsedCall
from batuta.gateway.ui.asked_runs import AskedRuns
from batuta.gateway.ui.draft_stream import StreamedConductor
from batuta.gateway.ui.rendering import render_page
from batuta.gateway.ui.run_stream import PageStreamRenderer
from batuta.gateway.ui.session import SessionManager, WebSession, check_form_token
from batuta.solvers.replay_conductor import ReplayConductor
from batuta.store import Store, decode_run

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
    """What is asked unless somebody chooses."""
    return ULTRA_MODEL if catalogue.find_model(ULTRA_MODEL) else catalogue.models[0].name


@final
class PlaygroundPage:
    """The screen."""

    def __init__(self, catalogue: Catalogue, store: Store | None, asked_runs: AskedRuns) -> None:
        self._catalogue = catalogue
        self._store = store
        self._asked_runs = asked_runs

    async def page(self, request: Request, session: WebSession) -> Response:
        """The composer; `again` fills it with a run's question, `replay` repeats its workflow."""
        query, catalogue = request.query_params, self._catalogue
        given = query.get("again") or query.get("replay")
        run = await load_run(self._store, self._asked_runs, given, session) if given else None
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
    """POST /ui/ask: the body of a chat completion, or `replay` with a run's id; answers in events.

    It is booked and executed as a call of the API is, by the same rules and limits.
    """

    def __init__(
        self,
        delivery: AnswerDelivery,
        store: Store | None,
        sessions: SessionManager,
        asked_runs: AskedRuns,
    ) -> None:
        self._delivery = delivery
        self._asked_runs = asked_runs
        self._store = store
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: before anything was said.
        """
        request = Request(scope, receive)
        visitor = self._sessions.identify(request)
        if visitor.caller.role is CallerRole.NOBODY:
            raise missing_key()
        check_form_token(visitor, request.headers.get("x-token"))
        body = await read_fields(scope, receive)
        replayed = body.text("replay")
        run = None
        if replayed:
            run = await load_run(self._store, self._asked_runs, replayed, visitor)
        call = (
            parse_chat(_drop_fields(body, "replay", "scope")) if run is None else _repeat_call(run)
        )
        delivery = self._delivery
        async with delivery.service.prepare_call(call, visitor.caller) as prepared:
            planned = prepared if run is None else self._with_recorded_plan(prepared, run)
            writer = SSEWriter(send, delivery.timeouts)
            renderer = PageStreamRenderer(writer, _panel_prefix(body.text("scope")))
            streamed = _stream_drafts(planned, renderer)
            with self._asked_runs.track(prepared.run_id, visitor):
                await delivery.stream_answer(streamed, renderer, writer, receive)

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
    store: Store | None, asked_runs: AskedRuns, run_id: str, session: WebSession
) -> Run:
    """The run of that id, if the visitor may see it; one that is being stopped is waited for.

    Raises:
        APIError: there is none, it goes on, its content was not kept, or it is too large.
    """
    await asked_runs.wait_for_end(run_id, session)
    encoded = None if store is None else await store.get_encoded(run_id, session.tenant)
    if encoded is None:
        raise not_found(f"The run '{run_id[:80]}', or its content,")
    if is_too_large(encoded):
        raise invalid_value("run", "it has too many parts to be shown; it can be exported.")
    return decode_run(encoded)


def is_too_large(encoded: bytes) -> bool:
    """Whether a stored run has so many parts that showing it would hold everybody else up."""
    return encoded.count(b"{") > MOST_PARTS


def _stream_drafts(prepared: PreparedCall, renderer: PageStreamRenderer) -> PreparedCall:
    """The prepared call, its conductor seen while it writes."""
    served = prepared.served_model
    if served.conductor is None:
        return prepared
    conductor = StreamedConductor(served.conductor, renderer.show_draft)
    return replace(prepared, served_model=replace(served, conductor=conductor))


def _repeat_call(run: Run) -> ParsedCall:
    return ParsedCall(model=run.header.model or ULTRA_MODEL, question=run.header.question)


def _drop_fields(body: Fields, *names: str) -> Fields:
    return Fields({name: value for name, value in body.raw.items() if name not in names})


def _panel_prefix(given: str | None) -> str:
    """What the names of a run's panels begin with."""
    return f"{given}-" if given in {"a", "b"} else ""

"""The events of a run, streamed to a page that may connect late or reconnect.

The page gets HTML from the templates that also render stored runs. Drafts and unfinished replies
are sent as plain text, and the unfinished answer also as HTML.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from batuta.core import (
    Event,
    GuardrailTriggered,
    RoundPlanned,
    Run,
    RunHeader,
    StepDelta,
    StepFinished,
    StepRetried,
    StepStarted,
)
from batuta.core.formatting import format_cost, format_count, format_seconds
from batuta.engine import Recorder
from batuta.engine.approval import WAITS
from batuta.gateway.access.caller import record_reading
from batuta.gateway.errors import APIError, internal_error, log_exception, not_found
from batuta.gateway.http.body import encode_json
from batuta.gateway.serving.deliver import SSEWriter, encoded_event_frame
from batuta.gateway.ui import run_view
from batuta.gateway.ui.page_runs import (
    Drafted,
    Ended,
    Failed,
    PageEvent,
    PageRun,
    Stopped,
    replay_run,
)
from batuta.gateway.ui.playground import ScriptEndpoint, load_run
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_answers, render_fragment
from batuta.gateway.ui.run_view import panel_scope
from batuta.gateway.ui.session import WebSession
from batuta.rendering.answer import render_answer

_ANSWER_SECONDS = 0.25
"""Minimum number of seconds between two updates of an unfinished answer."""


@final
class PageStreamRenderer:
    """Renders one run as events of the page."""

    def __init__(self, writer: SSEWriter, scope: str = "") -> None:
        """Send nothing yet.

        Args:
            writer: receives the events.
            scope: prefix of the HTML ids of this run's panels, if the page shows several runs.
        """
        self._writer = writer
        self._scope = scope
        self._recorder = Recorder()
        self._answer: list[str] = []
        """The fragments of the last step's reply so far."""
        self._next_answer = 0.0
        """The earliest time of the next update of the answer, by the monotonic clock."""

    async def open(self, run_id: str, seconds: float = 0.0) -> None:
        """Send the headers, the run's id and the seconds since its start."""
        await self._writer.open({**PAGE_HEADERS, "x-batuta-run-id": run_id})
        await self._send_event("opened", id=run_id, seconds=seconds)

    async def show(self, event: PageEvent) -> None:
        """Send an event of the run; the final event closes the stream."""
        match event:
            case Drafted():
                await self._send_event("drafted", text=event.text)
            case Ended():
                await self._send_end(event.run)
            case Failed():
                await self._fail(event.error)
            case Stopped():
                await self._writer.close(encoded_event_frame("stopped", b"{}"))
            case _:
                await self._show_event(event)

    async def _show_event(self, event: Event) -> None:
        if isinstance(event, RunHeader):  # a method may run several workflows, one after another
            self._recorder = Recorder()
            await self._send_event("began", conductor=event.conductor)
        self._recorder.add(event)
        match event:
            case RoundPlanned():
                await self._send_plan(event)
            case GuardrailTriggered() if event.action == WAITS:
                text = f"The plan waits for somebody's approval ({event.policy})."
                await self._send_event("waits", text=text)
            case StepStarted():
                await self._send_event("step", at=[event.round, event.index], worker=event.worker)
            case StepDelta():
                await self._send_delta(event)
            case StepRetried():
                await self._send_retry(event)
            case StepFinished():
                await self._send_step(event)
            case _:
                pass

    async def _fail(self, error: APIError) -> None:
        """Send the failed run if it was recorded, else the error, and close the stream."""
        if self._recorder.header is not None and self._recorder.ended is not None:
            await self._send_end(self._recorder.run())
            return
        await self._writer.close(
            encoded_event_frame("failed", encode_json({"message": error.message}))
        )

    async def _send_end(self, run: Run) -> None:
        usage, cost = run_view.sum_rounds(run.rounds)
        data = {
            "id": run.id,
            "outcome": run.outcome.value,
            "seconds": run.seconds,
            "totals": _totals_text(usage.total, format_cost(cost)),
            "time": format_seconds(run.seconds),
            "html": render_fragment(
                "answer.html.jinja", run=run, answers=await render_answers(run)
            ),
        }
        await self._writer.close(encoded_event_frame("ended", encode_json(data)))

    async def _send_plan(self, event: RoundPlanned) -> None:
        header, number = self._recorder.header, event.round
        if header is None:
            return
        self._answer = []
        values = {
            "round": event.planned,
            "number": number,
            "pool": header.pool,
            "many": number > 0,
            "scope": self._scope,
        }
        await self._send_event(
            "planned",
            round=number,
            steps=len(event.planned.workflow.steps) if event.planned.workflow else 0,
            draft=event.planned.decision.draft.text,
            html=render_fragment("round.html.jinja", **values),
            panels=render_fragment("panels.html.jinja", **values),
            totals=self._totals_so_far(),
        )

    async def _send_delta(self, event: StepDelta) -> None:
        delta = event.delta
        if text := delta.text or delta.reasoning or delta.tool_arguments:
            await self._send_event("spoke", at=[event.round, event.index], text=text)
        if delta.text and self._is_last_step(event):
            await self._send_answer_so_far(delta.text)

    def _is_last_step(self, event: StepDelta | StepRetried) -> bool:
        """Return True if the step is the last of its workflow, whose reply is the answer."""
        workflow = self._recorder.rounds[event.round].workflow
        return workflow is not None and event.index == len(workflow.steps) - 1

    async def _send_answer_so_far(self, text: str) -> None:
        """Send the beginning of the answer, which ends with this text, as rendered HTML.

        Some updates are left out, so that rendering takes at most about a tenth of the time.
        """
        self._answer.append(text)
        began = monotonic()
        if began < self._next_answer:
            return
        html = await render_answer("".join(self._answer))
        self._next_answer = monotonic() + max(_ANSWER_SECONDS, 10 * (monotonic() - began))
        await self._send_event("answering", html=html)

    async def _send_retry(self, event: StepRetried) -> None:
        failure = event.attempt.failure
        why = f"{event.attempt.worker}: {failure.code}"
        if self._is_last_step(event):
            self._answer = []
        await self._send_event("retried", at=[event.round, event.index], why=why)

    async def _send_step(self, event: StepFinished) -> None:
        header, number, index = self._recorder.header, event.round, event.step.index
        round_ = self._recorder.rounds[number]
        if header is None or round_.workflow is None:
            return
        await self._send_event(
            "stepped",
            at=[number, index],
            state=run_view.step_state(event.step),
            worker=event.step.worker,
            html=render_fragment(
                "step.html.jinja",
                round=round_,
                number=number,
                index=index,
                pool=header.pool,
                scope=self._scope,
            ),
            totals=self._totals_so_far(),
        )

    def _totals_so_far(self) -> dict[str, str]:
        usage, cost = run_view.sum_rounds(self._recorder.rounds)
        return _totals_text(usage.total, format_cost(cost))

    async def _send_event(self, name: str, **data: Any) -> None:
        await self._writer.write(encoded_event_frame(name, encode_json(data)))


def _totals_text(tokens: int, cost: str) -> dict[str, str]:
    return {"tokens": f"{format_count(tokens)} tok", "cost": cost}


@final
class RunEventsEndpoint(ScriptEndpoint):
    """GET /ui/runs/{id}/events: streams the events of a run, from its beginning to its end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection until the run ends.

        Raises:
            APIError: the visitor has not signed in, has no such run, or it cannot be shown.
        """
        request = Request(scope, receive)
        visitor = self._sessions.identify_signed_in(request)
        run_id: str = request.path_params["id"]
        page_run = self._page_runs.find(run_id, visitor)
        events = await self._events(run_id, page_run, visitor)
        writer = SSEWriter(send, self._delivery.timeouts)
        side = panel_scope(request.query_params.get("scope"))
        renderer = PageStreamRenderer(writer, f"{side}-" if side else "")

        async def work() -> None:
            await renderer.open(run_id, 0.0 if page_run is None else page_run.elapsed())
            async for event in events:
                await renderer.show(event)

        try:
            refusal = await self._delivery.show(visitor.caller, receive, work, writer)
        except Exception as error:  # noqa: BLE001 - status 200 was sent: report it in the stream
            log_exception(error)
            await renderer.show(Failed(internal_error()))
            return
        if refusal is not None:
            await renderer.show(Failed(refusal))

    async def _events(
        self, run_id: str, page_run: PageRun | None, visitor: WebSession
    ) -> AsyncIterator[PageEvent]:
        """Return the events of the run, live or from the store.

        Raises:
            APIError: the visitor has no such run, or it cannot be shown.
        """
        if page_run is None:
            return replay_run(await load_run(self._store, self._page_runs, run_id, visitor))
        if self._store is not None:
            if page_run.is_recorded and await self._store.summary(run_id) is None:  # deleted
                raise not_found(f"The run '{run_id[:80]}'")
            await record_reading(self._store, visitor.caller, run_id, page_run.tenant)
        return page_run.follow()

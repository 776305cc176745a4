"""A run streamed to the page: the workflow, each step as it lights up, the answer.

The page gets its HTML ready-made, by the same templates that show a stored run; only what workers
say while they speak comes as bare text.
"""

from __future__ import annotations

from typing import Any, final

from batuta.core import (
    Delta,
    Event,
    Reply,
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
from batuta.gateway.errors import APIError
from batuta.gateway.http.json_body import encode_json
from batuta.gateway.http.reader import SSEWriter, encoded_event_frame
from batuta.gateway.ui import run_view
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_answers, render_fragment


@final
class PageStreamRenderer:
    """Tells one run as events of the page."""

    def __init__(self, writer: SSEWriter, scope: str = "") -> None:
        """Prepares to tell.

        Args:
            writer: where the events go.
            scope: what the names of this run's panels begin with, where a page shows two runs.
        """
        self._writer = writer
        self._scope = scope
        self._recorder = Recorder()

    async def open(self, headers: dict[str, str]) -> None:
        """The headers, and that planning has begun."""
        await self._writer.open({**PAGE_HEADERS, **headers})
        await self._send_event("opened", id=headers.get("x-batuta-run-id"))

    async def on_event(self, event: Event) -> None:
        """Shows an event of the run."""
        if isinstance(event, RunHeader):  # a method may run several workflows, one after another
            self._recorder = Recorder()
        self._recorder.add(event)
        match event:
            case RunHeader():
                await self._send_event("began", conductor=event.conductor)
            case RoundPlanned():
                await self._send_plan(event)
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

    async def show_draft(self, text: str) -> None:
        """Shows what the conductor has just written of its draft."""
        await self._send_event("drafted", text=text)

    def matches(self, reply: Reply) -> bool:
        """Whatever was shown is replaced by the answer."""
        return True

    async def finish(self, run: Run, reply: Reply) -> None:
        """The answer, and the end."""
        await self._send_end(run)

    async def fail(self, error: APIError) -> None:
        """Why there is no answer, and the end."""
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
        text = _visible_text(event.delta)
        if text:
            await self._send_event("spoke", at=[event.round, event.index], text=text)

    async def _send_retry(self, event: StepRetried) -> None:
        failure = event.attempt.failure
        why = f"{event.attempt.worker}: {failure.code}"
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


def _visible_text(delta: Delta) -> str:
    """What a reader sees of a fragment."""
    return delta.text or delta.reasoning or delta.tool_arguments

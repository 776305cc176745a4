"""A run told to the page while it is played: the workflow, each step as it lights up, the answer.

The page gets its HTML ready-made, by the same templates that show a stored run; only what workers
say while they speak comes as bare text.
"""

from __future__ import annotations

from typing import Any, final

from batuta.core import (
    Began,
    Delta,
    Event,
    Header,
    Planned,
    Reply,
    Retried,
    Run,
    Spoke,
    Stepped,
)
from batuta.engine import Recorder
from batuta.gateway.line import Line
from batuta.gateway.refusal import Refusal
from batuta.gateway.ui import figures, trace
from batuta.gateway.ui.screens import HEADERS, fragment, rendered_answers
from batuta.gateway.wire.encoding import encode


@final
class PageTeller:
    """Tells one run as events of the page."""

    def __init__(self, line: Line, scope: str = "") -> None:
        """Prepares to tell.

        Args:
            line: where the events go.
            scope: what the names of this run's panels begin with, where a page shows two runs.
        """
        self._line = line
        self._scope = scope
        self._recorder = Recorder()

    async def open(self, headers: dict[str, str]) -> None:
        """The headers, and that planning has begun."""
        await self._line.open({**HEADERS, **headers})
        await self._tell("opened", id=headers.get("x-batuta-run-id"))

    async def hear(self, event: Event) -> None:
        """Shows an event of the run."""
        if isinstance(event, Header):  # a method may play several workflows, one after another
            self._recorder = Recorder()
        self._recorder.add(event)
        match event:
            case Header():
                await self._tell("began", conductor=event.conductor)
            case Planned():
                await self._planned(event)
            case Began():
                await self._tell("step", at=[event.round, event.index], worker=event.worker)
            case Spoke():
                await self._spoke(event)
            case Retried():
                await self._retried(event)
            case Stepped():
                await self._stepped(event)
            case _:
                pass

    async def drafted(self, text: str) -> None:
        """Shows what the conductor has just written of its draft."""
        await self._tell("drafted", text=text)

    def agrees(self, reply: Reply) -> bool:
        """Whatever was shown is replaced by the answer."""
        return True

    async def finish(self, run: Run, reply: Reply) -> None:
        """The answer, and the end."""
        await self._ended(run)

    async def fail(self, refusal: Refusal) -> None:
        """Why there is no answer, and the end."""
        if self._recorder.header is not None and self._recorder.ended is not None:
            await self._ended(self._recorder.run())
            return
        await self._line.close(_frame("failed", {"message": refusal.message}))

    async def _ended(self, run: Run) -> None:
        usage, cost = trace.totals(run.rounds)
        data = {
            "id": run.id,
            "outcome": run.outcome.value,
            "seconds": run.seconds,
            "totals": _totals(usage.total, figures.dollars(cost)),
            "time": figures.seconds(run.seconds),
            "html": fragment("answer.html.jinja", run=run, answers=await rendered_answers(run)),
        }
        await self._line.close(_frame("ended", data))

    async def _planned(self, event: Planned) -> None:
        header, number = self._recorder.header, event.round
        if header is None:
            return
        values = {
            "played": event.played,
            "number": number,
            "pool": header.pool,
            "many": number > 0,
            "scope": self._scope,
        }
        await self._tell(
            "planned",
            round=number,
            steps=len(event.played.workflow.steps) if event.played.workflow else 0,
            draft=event.played.decision.draft.text,
            html=fragment("round.html.jinja", **values),
            panels=fragment("panels.html.jinja", **values),
            totals=self._so_far(),
        )

    async def _spoke(self, event: Spoke) -> None:
        text = _text(event.delta)
        if text:
            await self._tell("spoke", at=[event.round, event.index], text=text)

    async def _retried(self, event: Retried) -> None:
        failure = event.attempt.failure
        why = f"{event.attempt.worker}: {failure.code}"
        await self._tell("retried", at=[event.round, event.index], why=why)

    async def _stepped(self, event: Stepped) -> None:
        header, number, index = self._recorder.header, event.round, event.step.index
        played = self._recorder.rounds[number]
        if header is None or played.workflow is None:
            return
        await self._tell(
            "stepped",
            at=[number, index],
            state=trace.state(event.step),
            worker=event.step.worker,
            html=fragment(
                "step.html.jinja",
                played=played,
                number=number,
                index=index,
                pool=header.pool,
                scope=self._scope,
            ),
            totals=self._so_far(),
        )

    def _so_far(self) -> dict[str, str]:
        usage, cost = trace.totals(self._recorder.rounds)
        return _totals(usage.total, figures.dollars(cost))

    async def _tell(self, name: str, **data: Any) -> None:
        await self._line.write(_frame(name, data))


def _totals(tokens: int, cost: str) -> dict[str, str]:
    return {"tokens": f"{figures.count(tokens)} tok", "cost": cost}


def _text(delta: Delta) -> str:
    """What a reader sees of a fragment."""
    return delta.text or delta.reasoning or delta.tool_arguments


def _frame(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))

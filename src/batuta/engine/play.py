"""One step while it is played: its worker, then its substitutes, until a reply can be used."""

from __future__ import annotations

from dataclasses import replace

import anyio

from batuta.core import (
    Attempt,
    Began,
    Failure,
    Finish,
    Reply,
    Request,
    Retried,
    Span,
    Step,
    Stepped,
    StepRun,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine.ask import repair_request, step_request, substitutes, too_long
from batuta.engine.call import Call, Race
from batuta.engine.stage import Stage
from batuta.errors import LimitReached
from batuta.policies import Form, Place
from batuta.policies.form import unfenced
from batuta.schemas import SchemaTooSlow

UNCHECKED = "schema_too_slow"
"""The code of a reply whose form cannot be told: nobody else could do better, nor a repair."""


class StepPlay:
    """A step of this run's round `number`."""

    def __init__(self, stage: Stage, workflow: Workflow, number: int, index: int) -> None:
        self.stage = stage
        self.workflow = workflow
        self.number = number
        self.index = index
        self.step: Step = workflow.steps[index]
        self.last = index == len(workflow) - 1
        before = stage.carried(number).get(index)
        self.worker: WorkerId = before.worker if before else self.step.worker
        """Who is asked first: the one who asked for a tool gets its result."""
        self.attempts: list[Attempt] = []
        self.request: Request | None = None
        self.calls: list[Call] = []
        """The calls in flight."""
        self.start = 0.0

    async def run(self) -> StepRun:
        """Play the step to its end, whatever happens."""
        self.start = self.stage.now()
        try:
            result = await self._result()
        except anyio.get_cancelled_exc_class():
            self._cancelled()
            raise
        ended = self._ended(result)
        await self.stage.tell(Stepped(self.number, ended))
        return ended

    async def note(self, failure: Failure, worker: WorkerId) -> None:
        """Keep a failed attempt, which is charged already, and tell of it."""
        attempt = Attempt(worker, failure, self.stage.now())
        self.attempts.append(attempt)
        await self.stage.tell(Retried(self.number, self.index, attempt))

    def _ended(self, result: Reply | Failure) -> StepRun:
        span = Span(self.start, self.stage.now())
        attempts = tuple(self.attempts)
        return StepRun(
            self.index, self.step.worker, self.worker, self.request, result, span, attempts
        )

    def _cancelled(self) -> None:
        """Record what the cut calls are likely to have cost; the telling waits."""
        result = Failure("cancelled", "the call was cancelled")
        for call in self.calls:
            if result.usage.calls:
                self.attempts.append(Attempt(self.worker, result, self.stage.now()))
            self.worker, self.request = call.worker.id, call.request
            result = call.cut("cancelled", "the call was cancelled")
            if call.exposed:
                self.stage.exposed = result
        event = Stepped(self.number, self._ended(result))
        self.stage.recorder.add(event)
        self.stage.late.append(event)

    async def _result(self) -> Reply | Failure:
        """The first usable reply of the worker or its substitutes, or the last failure."""
        stage = self.stage
        worker = stage.pool[self.worker]
        others: list[Worker] | None = None
        while True:
            try:
                stage.permit()
            except LimitReached as error:
                return Failure("limit", str(error))
            if not self.attempts:
                await stage.tell(Began(self.number, self.index, worker.id))
            if others is None and stage.patience.ends:
                others = substitutes(stage, worker.id)
            result = await self._asked(worker, others or [])
            if isinstance(result, Reply):
                return await self._formed(result)
            if others is None:
                others = substitutes(stage, worker.id)
            if stage.exposed or result.code == "limit" or not others:
                return result
            await self.note(result, self.worker)
            worker = others.pop(0)

    async def _asked(self, worker: Worker, others: list[Worker]) -> Reply | Failure:
        """What that worker replies, or whoever is asked beside it."""
        self.worker = worker.id
        self.request = self.prompt(worker)
        if failure := too_long(self.request, worker):
            return failure
        patience = self.stage.patience
        first = Call(self, worker, self.request)
        if patience.hedge is not None and self.last and others:
            return await Race(self, first, others, patience.hedge).run()
        return await first.run(patience.step if others else None)

    def prompt(self, worker: Worker) -> Request:
        """What that worker is asked."""
        return step_request(self.stage, self.workflow, self.number, self.index, worker)

    async def screened(self, reply: Reply) -> Reply | Failure:
        """The reply as the policies let it pass."""
        place = Place.OUTPUT if self.last else Place.BETWEEN
        clean, acts, blocked = await self.stage.policies.reply(reply, place, self.index)
        for act in acts:
            await self.stage.tell(act)
        if not blocked:
            return clean
        message = f"the policy {blocked} forbids the reply of {self.worker}"
        return Failure("policy_blocked", message, usage=reply.usage, cost=reply.cost)

    async def _formed(self, reply: Reply) -> Reply | Failure:
        """The answer in the form that was asked for, repaired once if need be."""
        wanted = self.stage.question.response_format
        if not self.last or wanted is None:
            return reply
        form = Form(wanted)
        checked = await _checked(form, reply, self.worker)
        if isinstance(checked, Reply) or checked.code == UNCHECKED:
            return checked
        await self.note(checked, self.worker)
        try:
            self.stage.permit()
        except LimitReached as error:
            return Failure("limit", str(error))
        self.request = repair_request(self.prompt(self.stage.pool[self.worker]), reply, checked)
        again = await Call(self, self.stage.pool[self.worker], self.request).run(None)
        return again if isinstance(again, Failure) else await _checked(form, again, self.worker)


async def _checked(form: Form, reply: Reply, worker: WorkerId) -> Reply | Failure:
    """The reply if it has the form, without a code block around it; a cut one cannot have it."""
    if reply.tool_calls or reply.finish is not Finish.STOP:
        return reply
    text = unfenced(reply.text)
    try:
        fault = await form.fault(text)
    except SchemaTooSlow as error:
        message = f"the form of the answer of {worker} is not known: {error}"
        return Failure(UNCHECKED, message, usage=reply.usage, cost=reply.cost)
    if fault is None:
        return replace(reply, text=text)
    message = f"{worker} did not answer in the form that was asked for: {fault}"
    return Failure("wrong_form", message, usage=reply.usage, cost=reply.cost)

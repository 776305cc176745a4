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
from batuta.engine.ask import (
    CUT_SHORT,
    allows_empty,
    fallback_workers,
    is_plain,
    repair_request,
    step_request,
    substitutes,
    too_long,
    whole_request,
)
from batuta.engine.budget import Hold
from batuta.engine.call import Call, Race
from batuta.engine.outcome import complete_reply
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
        kept = before is not None and before.worker in stage.pool
        self.worker: WorkerId = before.worker if before and kept else self.step.worker
        """Who is asked first: the one who asked for a tool gets its result."""
        self._others: list[Worker] | None = None
        """Who may be asked after the present worker; None: not looked for yet."""
        self.as_fallback = before is not None and before.as_fallback
        """Whether the whole question is asked, because nobody could play the step."""
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
            self.index,
            self.step.worker,
            self.worker,
            self.request,
            result,
            span,
            attempts,
            self.as_fallback,
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
        """The first usable reply of the worker, its substitutes or the fallback, or a failure."""
        result = await self._played(self.stage.pool[self.worker])
        if isinstance(result, Reply) or not self._asks_anew(result):
            return result
        await self.note(result, self.worker)
        failed = {attempt.worker: attempt.failure for attempt in self.attempts}
        self.as_fallback = True
        first, *self._others = fallback_workers(self.stage, failed)
        return await self._played(first)

    def _asks_anew(self, failure: Failure) -> bool:
        """Whether the whole question is asked now: else the run has no complete answer."""
        stage = self.stage
        if not (self.last and stage.asks_anew) or self.as_fallback:
            return False
        if stage.exposed or failure.code in {"limit", "wrong_form"} or is_plain(self.step):
            return False  # the form was asked for twice already
        return complete_reply(stage.rounds[:-1]) is None

    def has_others(self) -> bool:
        """Whether somebody else can still be asked in the present worker's place."""
        return bool(self._substitutes())

    def _substitutes(self) -> list[Worker]:
        """Who is asked next, best first."""
        if self._others is None:
            self._others = substitutes(self.stage, self.worker)
        return self._others

    def may_be_empty(self, reply: Reply) -> bool:
        """Whether that reply, which says nothing, is an answer.

        Where one worker is asked as if it were alone, its word is passed on as it is.
        """
        if not self.last or reply.finish is Finish.TOOL_CALLS:
            return False
        alone = len(self.workflow) == 1 or self.as_fallback
        return alone or allows_empty(self.stage.question, reply)

    async def _played(self, worker: Worker) -> Reply | Failure:
        """The first usable reply of the worker or of those after it, or the last failure."""
        stage = self.stage
        while True:
            prepared = await self._prepare(worker)
            if isinstance(prepared, Failure) and prepared.code == "limit":
                return prepared
            if not self.attempts:
                await stage.tell(Began(self.number, self.index, worker.id))
            others = self._substitutes() if stage.patience.ends else []
            result = await self._asked(worker, prepared, others)
            if isinstance(result, Reply):
                return await self._formed(result)
            if stage.exposed or result.code == "limit" or not self._substitutes():
                return result
            await self.note(result, self.worker)
            worker = self._substitutes().pop(0)

    async def _prepare(self, worker: Worker) -> Hold | Failure:
        """What is reserved for that worker's call, or why it cannot be asked."""
        self.worker, request = worker.id, self.prompt(worker)
        failure = too_long(request, worker)
        try:
            self.stage.permit()
            if failure is not None:
                self.request = request
                return failure
            hold = await self.stage.reserve(request, worker)
        except LimitReached as error:
            return Failure("limit", str(error))
        self.request = hold.request
        return hold

    async def _asked(
        self, worker: Worker, hold: Hold | Failure, others: list[Worker]
    ) -> Reply | Failure:
        """What that worker replies, or whoever is asked beside it; a failure stays one."""
        if isinstance(hold, Failure):
            return hold
        patience = self.stage.patience
        first = Call(self, worker, hold)
        if patience.hedge is not None and self.last and others:
            return await Race(self, first, others, patience.hedge).run()
        return await first.run(patience.step if others else None)

    def prompt(self, worker: Worker) -> Request:
        """What that worker is asked."""
        if self.as_fallback:
            return whole_request(self.stage, self.number, worker)
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
        worker = self.stage.pool[self.worker]
        try:
            repair = repair_request(self.prompt(worker), reply, checked)
            hold = await self.stage.reserve(repair, worker)
        except LimitReached as error:
            return Failure("limit", str(error))
        self.request = hold.request
        again = await Call(self, worker, hold).run(None)
        return again if isinstance(again, Failure) else await _checked(form, again, self.worker)


async def _checked(form: Form, reply: Reply, worker: WorkerId) -> Reply | Failure:
    """The reply if it has the form, without a code block around it; a cut one cannot have it."""
    if reply.tool_calls or reply.finish in CUT_SHORT:
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

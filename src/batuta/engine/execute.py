"""Runs one workflow: each step starts as soon as the steps it reads have ended.

A step is given to its worker, then to substitutes and, if it is the last, to fallback workers,
until one of them gives a usable reply.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import anyio

from batuta.core import (
    Attempt,
    Failure,
    Finish,
    Reply,
    StepFinished,
    StepRun,
    StepStarted,
    TimeSpan,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine.budget import Hold
from batuta.engine.call import HEDGE_LOSS, StepState, WorkerCall
from batuta.engine.context import RunContext
from batuta.engine.finalize import complete_reply
from batuta.engine.step_prompt import (
    TRUNCATED_FINISHES,
    fallback_workers,
    find_context_overflow,
    is_plain,
    repair_request,
)
from batuta.errors import LimitReachedError
from batuta.guardrails import ResponseFormatChecker
from batuta.schemas import SchemaTimeoutError, strip_code_fence


async def execute_workflow(context: RunContext, workflow: Workflow, number: int) -> None:
    """Execute `workflow` as this run's round `number`.

    A step that fails ends like any other, and the steps that read it are executed. A step that
    calls the client's tools blocks the steps that read it. If an earlier run began the workflow,
    steps that have ended with a reply are not executed again; a step that waits is, once the
    question contains one of its tool results.
    """
    done, held = _resumed_steps(context, number)
    if workflow.depth == len(workflow):  # a chain: nothing to run at the same time
        for index in sorted(set(range(len(workflow))) - done):
            if index in held or not await _run_step(context, workflow, number, index):
                return
        return
    steps = enumerate(workflow.steps)
    missing = {i: set(step.access) - done for i, step in steps if i not in done | held}
    ready = [i for i, needs in missing.items() if not needs]

    async def follow(index: int | None) -> None:
        """Run a step, then one step that became ready; other ready steps get separate tasks."""
        while index is not None and await _run_step(context, workflow, number, index):
            index = start(_newly_ready_steps(missing, index))

    def start(ready: list[int]) -> int | None:
        for other in ready[1:]:
            group.create_task(follow(other))
        return ready[0] if ready else None

    # The standard library's group gives the same guarantee at a third of the cost: bench/engine.py.
    async with asyncio.TaskGroup() as group:
        await follow(start(ready))


def _resumed_steps(context: RunContext, number: int) -> tuple[set[int], set[int]]:
    """Return the indices of the steps that earlier runs finished, and of those that still wait."""
    before = context.earlier_steps(number)
    done = {index for index, step in before.items() if not step.pending_calls}
    held = {i for i, step in before.items() if i not in done and not context.has_results(step)}
    return done, held


async def _run_step(context: RunContext, workflow: Workflow, number: int, index: int) -> bool:
    """Run the step; return False if it waits for the client's tools."""
    ended = await StepExecution(context, workflow, number, index).run()
    return not ended.pending_calls


def _newly_ready_steps(missing: dict[int, set[int]], ended: int) -> list[int]:
    """Return the steps that waited only for `ended`, which is removed from `missing`."""
    ready: list[int] = []
    for index, needs in missing.items():
        if ended in needs:
            needs.discard(ended)
            if not needs:
                ready.append(index)
    return ready


FORMAT_UNCHECKED = "schema_too_slow"
"""Code of the failure that a reply's format cannot be checked; a repair could not help."""


class StepExecution(StepState):
    """A step of this run's round `number`, and how it is executed to its end."""

    async def run(self) -> StepRun:
        """Run the step to its end; a step that failed has a failure as its result.

        Raises:
            anyio.get_cancelled_exc_class(): the run was cancelled; the calls' cost was recorded.
        """
        self.start = self.context.elapsed()
        try:
            result = await self._first_usable_reply()
        except anyio.get_cancelled_exc_class():
            self._record_cancellation()
            raise
        ended = self._step_run(result)
        await self.context.publish(StepFinished(self.number, ended))
        return ended

    def _step_run(self, result: Reply | Failure) -> StepRun:
        span = TimeSpan(self.start, self.context.elapsed())
        attempts = tuple(self.attempts)
        return StepRun(
            index=self.index,
            planned=self.step.worker,
            worker=self.worker,
            request=self.request,
            result=result,
            span=span,
            attempts=attempts,
            as_fallback=self.as_fallback,
        )

    def _record_cancellation(self) -> None:
        """Record the known or estimated cost of the cancelled calls; publish the event later."""
        result = Failure(code="cancelled", message="the call was cancelled")
        for call in self.calls:
            if result.usage.calls:
                self.attempts.append(Attempt(self.worker, result, self.context.elapsed()))
            self.worker, self.request = call.worker.id, call.request
            result = call.cancel("cancelled", "the call was cancelled")
            if call.is_exposed:
                self.context.exposed_failure = result
        event = StepFinished(self.number, self._step_run(result))
        self.context.recorder.add(event)
        self.context.deferred_events.append(event)

    async def _first_usable_reply(self) -> Reply | Failure:
        """Return the first usable reply of the worker, its substitutes or the fallback workers.

        If there is none, return the last failure. A reply without output, of a program or tool, is
        returned unless the whole question must be asked.
        """
        result = await self._try_workers(self.context.pool[self.worker])
        failure = result if isinstance(result, Failure) else _missing_output(result)
        if failure is None or not self._needs_whole_question(failure):
            return result
        await self.record_attempt(failure, self.worker)
        failed = {attempt.worker: attempt.failure for attempt in self.attempts}
        self.as_fallback = True
        first, *self.others = fallback_workers(self.context, failed)
        return await self._try_workers(first)

    def _needs_whole_question(self, failure: Failure) -> bool:
        """Return True if the whole question must be asked after this failure of the last step."""
        context = self.context
        settings = context.settings
        retry = settings.fallback and settings.retry_whole_question
        if not (self.gives_answer and retry) or self.as_fallback:
            return False
        if context.rules.checking_rule is not None:
            return False  # the reply would bypass the checking step that a rule requires
        if (
            context.exposed_failure
            or failure.code in {"limit", "wrong_form"}
            or is_plain(self.step)
        ):
            return False  # already shown, unaffordable, already repaired, or the question itself
        return complete_reply(context.rounds[:-1]) is None

    async def _try_workers(self, worker: Worker) -> Reply | Failure:
        """Return the first usable reply of the worker or its substitutes, or the last failure."""
        context = self.context
        while True:
            prepared = await self._reserve_call(worker)
            if isinstance(prepared, Failure) and prepared.code == "limit":
                return prepared
            if not self.attempts:
                await self._publish_start(worker, prepared)
            others = self.substitutes() if context.settings.timeouts.has_timeout else []
            result = await self._call_worker(worker, prepared, others)
            if isinstance(result, Reply):
                return await self._check_format(result)
            if context.exposed_failure or result.code == "limit" or not self.substitutes():
                return result
            await self.record_attempt(result, self.worker)
            worker = self.substitutes().pop(0)

    async def _publish_start(self, worker: Worker, prepared: Hold | Failure) -> None:
        """Publish that the step starts; if the run is cancelled meanwhile, release the call."""
        try:
            await self.context.publish(StepStarted(self.number, self.index, worker.id))
        except BaseException:
            if isinstance(prepared, Hold):
                self.context.budget.release(prepared)
            raise

    async def _reserve_call(self, worker: Worker) -> Hold | Failure:
        """Reserve the worker's call, or return why the worker cannot be asked."""
        self.worker, request = worker.id, self.build_request(worker)
        failure = find_context_overflow(request, worker)
        try:
            self.context.check_budget()
            if failure is not None:
                self.request = request
                return failure
            hold = await self.context.reserve(request, worker)
        except LimitReachedError as error:
            return Failure(code="limit", message=str(error))
        self.request = hold.request
        return hold

    async def _call_worker(
        self, worker: Worker, hold: Hold | Failure, others: list[Worker]
    ) -> Reply | Failure:
        """Return the reply of the worker, or of a second worker called in parallel.

        A failure to reserve the call is returned unchanged.
        """
        if isinstance(hold, Failure):
            return hold
        timeouts = self.context.settings.timeouts
        first = WorkerCall(self, worker, hold)
        if timeouts.hedge_seconds is not None and self.gives_answer and others:
            return await Hedge(self, first, others, timeouts.hedge_seconds).run()
        return await first.run(timeouts.step_seconds if others else None)

    async def _check_format(self, reply: Reply) -> Reply | Failure:
        """Return the answer in the requested format, repaired once if necessary, or a failure.

        A step that does not answer, and a question without a format, need no check.
        """
        required = self.context.question.response_format
        if not self.gives_answer or required is None:
            return reply
        checker = ResponseFormatChecker(required)
        checked = await self._check_once(checker, reply)
        if isinstance(checked, Reply) or checked.code == FORMAT_UNCHECKED or self.has_shown_text:
            return checked
        await self.record_attempt(checked, self.worker)
        worker = self.context.pool[self.worker]
        try:
            repair = repair_request(self.build_request(worker), reply, checked)
            hold = await self.context.reserve(repair, worker)
        except LimitReachedError as error:
            return Failure(code="limit", message=str(error))
        self.request = hold.request
        again = await WorkerCall(self, worker, hold).run(None)
        return again if isinstance(again, Failure) else await self._check_once(checker, again)

    async def _check_once(self, checker: ResponseFormatChecker, reply: Reply) -> Reply | Failure:
        """Return the reply if it has the requested format, else a failure.

        The failure ends the run if the client has already received part of the text.
        """
        checked = await _check_reply_format(checker, reply, self.worker)
        if isinstance(checked, Failure) and self.has_shown_text:
            self.context.exposed_failure = checked
        return checked


async def _check_reply_format(
    checker: ResponseFormatChecker, reply: Reply, worker: WorkerId
) -> Reply | Failure:
    """Return the reply, without a code block around it, if it has the requested format.

    Otherwise return a failure. A truncated reply and one with tool calls are returned unchecked.
    Every alternative must have the format too.
    """
    alternatives: list[Reply] = []
    for other in reply.alternatives:
        checked = await _check_reply_format(checker, other, worker)
        if isinstance(checked, Failure):
            return replace(checked, usage=reply.usage, cost=reply.cost)
        alternatives.append(checked)
    reply = replace(reply, alternatives=tuple(alternatives)) if alternatives else reply
    if reply.tool_calls or reply.finish in TRUNCATED_FINISHES:
        return reply
    text = strip_code_fence(reply.text)
    try:
        fault = await checker.find_fault(text)
    except SchemaTimeoutError as error:
        message = f"the format of {worker}'s answer could not be checked: {error}"
        return Failure(code=FORMAT_UNCHECKED, message=message, usage=reply.usage, cost=reply.cost)
    if fault is None:
        return replace(reply, text=text)
    message = f"{worker} did not answer in the requested format: {fault}"
    return Failure(code="wrong_form", message=message, usage=reply.usage, cost=reply.cost)


def _missing_output(reply: Reply) -> Failure | None:
    """Return a failure if a program or tool returned no output; None otherwise.

    A later step can repair such a program; a client can do nothing with it.
    """
    if reply.finish is not Finish.NO_OUTPUT:
        return None
    message = reply.text.split("\n", 1)[0]
    return Failure(code="no_output", message=message, usage=reply.usage, cost=reply.cost)


class Hedge:
    """A call, and a second call in parallel if the first sends nothing for `delay` seconds.

    If the answer is shown as it is written, the first call to send a fragment wins and the other
    one is cancelled; otherwise the first complete reply wins. The loser's cost is recorded.
    """

    def __init__(
        self, step: StepState, first: WorkerCall, others: list[Worker], delay: float
    ) -> None:
        self.step = step
        self.calls = [first]
        self.others = others
        self.delay = delay
        self.speaker: WorkerCall | None = None
        """The call whose text is streamed."""
        self.winner: WorkerCall | None = None
        self.results: dict[WorkerCall, Reply | Failure] = {}
        self.ended = anyio.Event()
        """Set when one of the calls has ended."""
        self._add_call(first)

    def may_emit(self, call: WorkerCall) -> bool:
        """Return True if the call's text may be streamed."""
        if self.speaker is None:
            self.speaker = call
            if self.step.context.shows_answer(self.step.number):
                self._cancel_all_but(call)
        return self.speaker is call

    async def run(self) -> Reply | Failure:
        """Return the first reply.

        Without any, return the failure of the call that was streamed or, if none was, of the first.
        """
        first = self.calls[0]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run_call, first)
            with anyio.move_on_after(self.delay):
                await self.ended.wait()
            second = (
                None
                if self.ended.is_set() or first.has_received
                else await self._start_second_call()
            )
            if second is not None:
                tasks.start_soon(self._run_call, second)
        answering = self.winner or self.speaker or first
        for call in self.calls:
            if call is not answering:
                await self.step.record_attempt(self._loser_failure(call), call.worker.id)
        self.step.worker, self.step.request = answering.worker.id, answering.request
        return self.results[answering]

    async def _run_call(self, call: WorkerCall) -> None:
        result = self.results[call] = await call.run(None)
        if isinstance(result, Reply) and self.winner is None:
            self.winner = call
            self._cancel_all_but(call)
        self.ended.set()

    async def _start_second_call(self) -> WorkerCall | None:
        """Return a call of the best other worker.

        Return None if the prompt does not fit in its context window, if the budget does not cover
        both calls, or if the first call sends output or ends while the second is being reserved.
        """
        worker, budget = self.others[0], self.step.context.budget
        request = self.step.build_request(worker)
        if find_context_overflow(request, worker) is not None:
            return None
        try:
            hold = await budget.reserve(request, worker, whole=True, waits=False)
        except LimitReachedError:
            return None
        if self.ended.is_set() or self.calls[0].has_received:
            budget.release(hold)
            return None
        del self.others[0]
        call = WorkerCall(self.step, worker, hold)
        self.calls.append(call)
        self._add_call(call)
        return call

    def _add_call(self, call: WorkerCall) -> None:
        call.hedge, call.scope = self, anyio.CancelScope()

    def _cancel_all_but(self, call: WorkerCall) -> None:
        for other in self.calls:
            if other is not call and other not in self.results and other.scope is not None:
                other.scope.cancel()

    def _loser_failure(self, call: WorkerCall) -> Failure:
        """Return the result of a losing call as a failure, which carries its cost."""
        result = self.results[call]
        if isinstance(result, Failure):
            return result
        return Failure(
            code=HEDGE_LOSS[0], message=HEDGE_LOSS[1], usage=result.usage, cost=result.cost
        )

"""What the calls of one step share, and one call of one worker: the listener of its client."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Protocol

import anyio

from batuta.core import (
    Attempt,
    Cost,
    Delta,
    Failure,
    Finish,
    Reply,
    Request,
    Step,
    StepDelta,
    StepRetried,
    ToolCallOrigin,
    Usage,
    Worker,
    WorkerId,
    Workflow,
    encode_call_id,
)
from batuta.core.redaction import clean_message
from batuta.core.run import HEDGE_LOST
from batuta.core.token_estimate import estimate_request_tokens, token_weight, tokens_from_weight
from batuta.engine.budget import Hold
from batuta.engine.context import RunContext
from batuta.engine.json_filter import JsonTextFilter
from batuta.engine.offered_tools import OfferedTools
from batuta.engine.step_prompt import (
    allows_empty,
    find_missing_field,
    is_empty,
    lacks_call,
    needs_call,
    step_request,
    substitute_workers,
    whole_question_request,
)
from batuta.errors import ClientError, LimitReachedError, RateLimitError, StreamInterruptedError
from batuta.guardrails import GuardrailStage
from batuta.usage import usage_cost

logger = logging.getLogger(__name__)

MAX_PAUSE_SECONDS = 2.0
"""Seconds that a step waits for a worker whose provider asks to slow down, if others can step."""
HEDGE_LOSS = (HEDGE_LOST, "another worker was faster")
"""The failure of a call that was cut because another one answers."""


class CallRace(Protocol):
    """Several calls for one step, of which one answers."""

    speaker: WorkerCall | None
    """Whose words are streamed."""

    def may_emit(self, call: WorkerCall) -> bool:
        """Whether that call's words may be streamed."""
        ...


class StepState:
    """A step of this run's round `number`."""

    def __init__(self, context: RunContext, workflow: Workflow, number: int, index: int) -> None:
        self.context = context
        self.workflow = workflow
        self.number = number
        self.index = index
        self.step: Step = workflow.steps[index]
        self.last = index == len(workflow) - 1
        before = context.earlier_steps(number).get(index)
        kept = before is not None and before.worker in context.pool
        self.worker: WorkerId = before.worker if before and kept else self.step.worker
        """Who is asked first: the one who asked for a tool gets its result."""
        self.others: list[Worker] | None = None
        """Who may be asked after the present worker; None: not looked for yet."""
        self.as_fallback = before is not None and before.as_fallback
        """Whether the whole question is asked, because nobody could answer the step."""
        self.attempts: list[Attempt] = []
        self.request: Request | None = None
        self.calls: list[WorkerCall] = []
        """The calls in flight."""
        self.start = 0.0
        self.has_shown_text = False
        """Whether a reader has seen a part of this step's text as the answer."""

    async def record_attempt(self, failure: Failure, worker: WorkerId) -> None:
        """Keep a failed attempt, which is charged already, and tell of it."""
        attempt = Attempt(worker, failure, self.context.elapsed())
        self.attempts.append(attempt)
        await self.context.publish(StepRetried(self.number, self.index, attempt))

    def has_others(self) -> bool:
        """Whether somebody else can still be asked in the present worker's place."""
        return bool(self.substitutes())

    def substitutes(self) -> list[Worker]:
        """Who is asked next, best first."""
        if self.others is None:
            able = self.context.substitutes
            self.others = substitute_workers(self.context, self.worker) if able else []
        return self.others

    def may_be_empty(self, reply: Reply) -> bool:
        """Whether that reply, which says nothing, is an answer.

        Where one worker is asked as if it were alone, its word is passed on as it is.
        """
        if not self.last or reply.finish is Finish.TOOL_CALLS:
            return False
        alone = len(self.workflow) == 1 or self.as_fallback
        return alone or allows_empty(self.context.question, reply)

    def build_request(self, worker: Worker) -> Request:
        """What that worker is asked."""
        if self.as_fallback:
            return whole_question_request(self.context, self.number, worker)
        return step_request(
            self.context, self.workflow, number=self.number, index=self.index, worker=worker
        )

    async def apply_guardrails(self, reply: Reply) -> Reply | Failure:
        """The reply as the policies let it pass."""
        place = GuardrailStage.OUTPUT if self.last else GuardrailStage.BETWEEN
        if place not in self.context.guardrails.stages:
            return reply
        clean, acts, blocked = await self.context.guardrails.check_reply(reply, place, self.index)
        for act in acts:
            await self.context.publish(act)
        if not blocked:
            return clean
        message = f"the policy {blocked} forbids the reply of {self.worker}"
        return Failure(code="policy_blocked", message=message, usage=reply.usage, cost=reply.cost)


class WorkerCall:
    """A call while it lasts; it is the listener of the worker's client."""

    def __init__(self, step: StepState, worker: Worker, hold: Hold) -> None:
        self.step = step
        self.context = step.context
        self.worker = worker
        self.request: Request = hold.request
        self.hold: Hold | None = hold
        """What is reserved for the present attempt; None: it was charged."""
        self.streaming = step.context.emit is not None
        self._received: list[str] = []
        """What came of the present attempt."""
        self._buffered = self._new_buffer()
        """What is told once a tool is called; None: everything is told at once."""
        self._json_filter = self._new_filter()
        """Of a live answer that must be JSON, what may be told as it comes; None: all of it."""
        self.has_emitted = False
        """Whether anything of the present attempt was streamed."""
        self.is_settled = False
        """Whether the failure that ends the call was already noted and charged."""
        self.hedge: CallRace | None = None
        self.scope: anyio.CancelScope | None = None
        """Of a call that may be cut before the run is."""
        self.result: Reply | Failure | None = None
        """Once it is there, and charged."""
        # What one worker alone is asked may continue with it: then its own ids are as good.
        renames = len(step.workflow) > 1 or len(step.context.pool) > 1
        self._tools = OfferedTools(self.request, self._make_call_id if renames else None)

    # -- the listener ---------------------------------------------------------------------

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """The request as it is: a worker's call was reserved before it was made."""
        return request

    async def on_delta(self, delta: Delta) -> None:
        """A fragment: count it, pass it on."""
        self._received += (delta.text, delta.reasoning, delta.tool_arguments)
        if self.hedge is not None and not self.hedge.may_emit(self):
            return
        for each in self._tellable_deltas(delta):
            await self._emit(each)

    def _tellable_deltas(self, delta: Delta) -> Sequence[Delta]:
        """What is told now that this fragment came: it, what waited for it, or nothing."""
        if delta.tool_index is not None:
            named = self._tools.renumber_delta(delta, delta.tool_index)
            if named is None:
                return ()
            held, self._buffered = self._buffered or [], None
            if self._json_filter is not None and (text := self._json_filter.release()):
                held.append(Delta(text=text))  # a reply that calls a tool need not have the form
            return (*held, named)
        if self._buffered is not None:
            self._buffered.append(delta)
            return ()
        if self._json_filter is None or not delta.text:
            return (delta,)
        shown = replace(delta, text=self._json_filter.add(delta.text))
        return (shown,) if shown.text or shown.reasoning or shown.thought else ()

    async def _emit(self, delta: Delta) -> None:
        step, self.has_emitted = self.step, True
        if self.scope is not None and self.is_exposed:
            self.scope.deadline = inf
        is_answer = step.last and self.context.shows_answer(step.number)
        if is_answer and delta.text:
            step.has_shown_text = True
        await self.context.publish(
            StepDelta(
                round=step.number,
                index=step.index,
                worker=self.worker.id,
                delta=delta,
                is_answer=is_answer,
            )
        )

    async def on_failure(self, failure: Failure) -> None:
        """An attempt failed and the client wants to try again: charge it, permit or forbid.

        Raises:
            LimitReachedError: the budget forbids another attempt.
            StreamInterruptedError: the reader has already seen a part of this answer.
            RateLimitError: the provider wants to be skipped, and others can be asked.
        """
        failure = replace(failure, message=clean_message(failure.message))
        if (
            self._is_rate_limited(failure) and self.step.has_others()
        ):  # charged and noted at its end
            usage, cost = failure.usage, failure.cost
            wait = failure.retry_after
            raise RateLimitError(failure.message, retry_after=wait, usage=usage, cost=cost)
        self._charge(failure.usage, failure.cost)
        await self.step.record_attempt(failure, self.worker.id)
        if self.is_exposed:
            self.is_settled = True
            raise StreamInterruptedError(failure.message)
        self.hold = await self.context.reserve(self.request, self.worker, whole=True)
        self._received, self.has_emitted, self._buffered = [], False, self._new_buffer()
        self._json_filter = self._new_filter()
        self._tools.forget_calls()

    @staticmethod
    def _is_rate_limited(failure: Failure) -> bool:
        """Whether the provider asks for a pause that is longer than another worker needs."""
        wait = failure.retry_after
        return failure.code == RateLimitError.code and wait is not None and wait > MAX_PAUSE_SECONDS

    # -- calling --------------------------------------------------------------------------

    @property
    def has_received(self) -> bool:
        """Whether anything came of the present attempt."""
        return any(self._received)

    @property
    def is_exposed(self) -> bool:
        """Whether a reader has seen a part of what this call says."""
        seen = self.hedge is None or self.hedge.speaker is self
        live = self.step.last and self.context.shows_answer(self.step.number)
        return live and self.has_emitted and seen

    def _new_buffer(self) -> list[Delta] | None:
        """Where a tool must be called a reader sees nothing until one is: it may never be."""
        return [] if needs_call(self.request) else None

    def _new_filter(self) -> JsonTextFilter | None:
        """What keeps a reader from seeing what a repair would replace."""
        step, wanted = self.step, self.context.question.response_format
        if wanted is None or not step.last or not self.context.shows_answer(step.number):
            return None
        return JsonTextFilter()

    async def run(self, timeout_seconds: float | None) -> Reply | Failure:
        """The reply or the failure; either is charged.

        Args:
            timeout_seconds: after which the call is given up, unless a reader has seen a part
                of what it says; None: never.
        """
        self.step.calls.append(self)
        if timeout_seconds is None and self.hedge is None:
            self.result = await self._complete()
        else:
            await self._complete_within(timeout_seconds)
        if self.result is None:
            late = f"no reply within {timeout_seconds or 0:g} s"
            result = (
                self.cancel("timed_out", late) if self.hedge is None else self.cancel(*HEDGE_LOSS)
            )
        else:
            result = self.result
            self._charge(result.usage, result.cost)
        if isinstance(result, Reply):
            result = await self.step.apply_guardrails(result)
        elif self.is_exposed:
            self.context.exposed_failure = result
        self.step.calls.remove(self)
        return result

    async def _complete_within(self, patience: float | None) -> None:
        """Calls, until it is answered, its time is up or its rival was faster."""
        self.scope = scope = self.scope or anyio.CancelScope()
        if patience is not None:
            scope.deadline = anyio.current_time() + patience
        with scope:
            self.result = await self._complete()

    def cancel(self, code: str, message: str) -> Failure:
        """The failure of a call that was cut, with what it has cost or is likely to have cost."""
        if self.result is not None:
            return Failure(
                code=code, message=message, usage=self.result.usage, cost=self.result.cost
            )
        if self.hold is None:  # between two attempts: the first is charged, the next is not made
            return Failure(code=code, message=message)
        output = tokens_from_weight(sum(map(token_weight, self._received)))
        usage = Usage(
            calls=1, input=estimate_request_tokens(self.request), output=output, estimated=1
        )
        cost = usage_cost(usage, self.worker.price)
        self._charge(usage, cost)
        return Failure(code=code, message=message, usage=usage, cost=cost)

    def _charge(self, usage: Usage, cost: Cost) -> None:
        """Counts what the present attempt consumed, in the place of what was reserved for it."""
        self.context.budget.charge(usage, cost, self.hold)
        self.hold = None

    async def _complete(self) -> Reply | Failure:
        """One call with its client's own retries."""
        try:
            reply = await self.context.clients[self.worker.id].complete(self.request, self)
        except LimitReachedError as error:
            return Failure(code="limit", message=str(error))
        except ClientError as error:
            return (
                Failure(code=error.code, message=clean_message(str(error)))
                if self.is_settled
                else Failure.of(error)
            )
        except Exception as error:  # a fault of ours or of a client must not lose the run
            logger.exception("the client of %s raised %s", self.worker.id, type(error).__name__)
            return Failure(
                code="internal_error", message=f"{type(error).__name__} inside the client"
            )
        own = self._tools.drop_undeclared_calls(reply)
        fault = self._find_fault(own, undeclared=len(own.tool_calls) < len(reply.tool_calls))
        return (
            own
            if fault is None
            else Failure(code=fault[0], message=fault[1], usage=reply.usage, cost=reply.cost)
        )

    def _find_fault(self, reply: Reply, *, undeclared: bool) -> tuple[str, str] | None:
        """Why the reply cannot be used, as a code and a sentence; None if it can."""
        if undeclared and is_empty(reply):
            return "unknown_tool", "it calls a tool that was not offered"
        if lacks_call(self.request, reply):
            return "no_tool_call", "it does not call the tool that it must call"
        if (missing := find_missing_field(self.request, reply)) is not None:
            return "unsupported_field", f"{self.worker.id} {missing}"
        if not is_empty(reply):
            return None
        return None if self.step.may_be_empty(reply) else ("empty_reply", "the reply is empty")

    def _make_call_id(self, number: int) -> str:
        round_number = self.context.round_offset + self.step.number
        return encode_call_id(
            ToolCallOrigin(self.context.run_id, round_number, self.step.index, number)
        )

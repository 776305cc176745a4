"""The state shared by the calls of one step, and one call: its budget, stream, tools and result."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from sys import maxsize
from typing import Protocol, final

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
    ToolCall,
    ToolCallOrigin,
    Usage,
    Worker,
    WorkerId,
    Workflow,
    encode_call_id,
    unused_call_id,
)
from batuta.core.redaction import clean_message
from batuta.core.run import HEDGE_LOST
from batuta.core.token_estimate import token_weight, tokens_from_weight
from batuta.core.worker import VISION
from batuta.engine.budget import Hold
from batuta.engine.context import RunContext
from batuta.engine.step_prompt import (
    allows_empty,
    find_missing_field,
    is_empty,
    is_plain,
    lacked_tags,
    lacks_call,
    needs_call,
    show_seen,
    step_request,
    substitute_workers,
    whole_question_request,
)
from batuta.errors import ClientError, LimitReachedError, RateLimitError, StreamInterruptedError
from batuta.guardrails import GuardrailStage, describe_block
from batuta.language.prompt import made_pictures
from batuta.usage import ZERO_COST, ZERO_USAGE

logger = logging.getLogger(__name__)

_STRUCTURE = re.compile(r'["\\{}\[\]]')
_OPENING = frozenset("{[")


@final
class JsonTextFilter:
    """A filter that passes the text of a JSON object or array, and holds back all other text.

    A reply that begins with prose or a code block may be repaired or unwrapped, so none of it is
    streamed. Text after the end of the value is held back too.
    """

    def __init__(self) -> None:
        self._held: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False
        self._ended = False

    def add(self, text: str) -> str:
        """Return the text that can be shown now and was not shown before."""
        self._held.append(text)
        if self._ended:
            return ""
        if not self._begun:
            if text.isspace():
                return ""  # decides nothing, and joining the held text may be slow
            text = "".join(self._held)
            first = text.lstrip()[:1]
            self._begun = first in _OPENING
            self._ended = bool(first) and not self._begun
            if not self._begun:
                return ""
        end = self._scan(text)
        self._held = [text[end:]] if end < len(text) else []
        return text[:end]

    def release(self) -> str:
        """Return the text held back so far; text added later is held back too."""
        held, self._held, self._ended = "".join(self._held), [], True
        return held

    def _scan(self, text: str) -> int:
        """Return the index just after the value's end; the text's length if it does not end."""
        position = 0
        if self._escaped and text:
            self._escaped, position = False, 1
        while found := _STRUCTURE.search(text, position):
            position = found.end()
            sign = found[0]
            if sign == "\\" and self._in_string:
                self._escaped = position == len(text)
                position += 1
            elif sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if sign in _OPENING else -1
                if self._depth == 0:
                    self._ended = True
                    return position
        return len(text)


_PREFIXES = ("functions.", "default_api.", "default_api:")
_NAME_CHARACTERS = 1024


def _plain_name(name: str) -> str:
    """Return a tool's name without the decoration that some model families add.

    Kimi models write `functions.weather:0`, Gemini `default_api:weather`, gpt-oss
    `functions.weather<|channel|>commentary`.
    """
    plain = name[:_NAME_CHARACTERS].partition("<|")[0].strip(" \t\r\n\"'`")
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    begun, colon, number = plain.rpartition(":")
    return begun if colon and number.isdecimal() else plain


@final
class OfferedTools:
    """Renumbers the calls of the client's tools, and drops calls of other tools.

    If the client forbids parallel calls, all calls but the first are dropped too, since not every
    provider obeys. If the request forbids calls, no tool counts as offered.
    """

    def __init__(self, request: Request, make_id: Callable[[int], str] | None) -> None:
        """Store the tools of the request.

        Args:
            request: contains the offered tools.
            make_id: returns the client's id for the n-th call of a reply, from 0; None: the
                worker's ids are kept, unless the conversation has a call of the same id.
        """
        self._request = request
        self._make_id = make_id
        self._most = 1 if request.parallel_tool_calls is False else maxsize
        self._earlier_ids: Sequence[str] | None = None
        """The ids of the conversation's calls; None until they are needed."""
        self._indices: dict[tuple[int, int], int | None] = {}
        """The client's index by (choice, worker's index); None: the call is dropped."""
        self._offered_calls: Counter[int] = Counter()
        """Number of streamed calls that are not dropped, by choice."""

    def forget_calls(self) -> None:
        """Forget the calls before another attempt."""
        self._indices.clear()
        self._offered_calls.clear()

    def renumber_delta(self, delta: Delta, index: int) -> Delta | None:
        """Return the fragment with the client's index and id, and the tool's exact name.

        None: the call is dropped.
        """
        key = (delta.choice, index)
        if key not in self._indices:
            has_room = self._offered_calls[delta.choice] < self._most
            offered = has_room and self._offered_name(delta.tool_name) is not None
            self._indices[key] = self._offered_calls[delta.choice] if offered else None
            self._offered_calls[delta.choice] += offered
        mine = self._indices[key]
        if mine is None:
            return None
        return replace(
            delta,
            tool_index=mine,
            tool_id=self._call_id(delta.tool_id, mine) if delta.tool_id else "",
            tool_name=self._offered_name(delta.tool_name) or delta.tool_name,
        )

    def calls_unoffered(self, reply: Reply) -> bool:
        """Return True if the reply calls a tool that was not offered."""
        return any(self._offered_name(call.name) is None for call in reply.tool_calls)

    def drop_calls(self, reply: Reply) -> Reply:
        """Return the reply and its alternatives without the calls that are dropped.

        The remaining calls get the offered tools' exact names and the client's ids. If a reply
        ended in calls and none remains, it ends as `Finish.STOP`.
        """
        if reply.alternatives:
            others = tuple(self.drop_calls(other) for other in reply.alternatives)
            reply = replace(reply, alternatives=others)
        if not reply.tool_calls:
            return reply
        named = ((self._offered_name(call.name), call) for call in reply.tool_calls)
        offered = [(name, call) for name, call in named if name is not None]
        calls = tuple(
            ToolCall(id=self._call_id(call.id, number), name=name, arguments=call.arguments)
            for number, (name, call) in enumerate(offered[: self._most])
        )
        finish = Finish.STOP if not calls and reply.finish is Finish.TOOL_CALLS else reply.finish
        return replace(reply, tool_calls=calls, finish=finish)

    def _offered_name(self, name: str) -> str | None:
        """Return the exact name of the offered tool that a call names.

        Return None if no such tool was offered, or if the request forbids calls.
        """
        if self._request.tool_choice == "none":
            return None
        names = {tool.name for tool in self._request.tools}
        return next((one for one in (name, _plain_name(name)) if one in names), None)

    def _call_id(self, given: str, number: int) -> str:
        """Return the id under which the client gets a call; clients drop a call of a known id."""
        if self._make_id is not None:
            return self._make_id(number)
        if self._earlier_ids is None:
            parts = [part for message in self._request.messages for part in message.parts]
            self._earlier_ids = [part.id for part in parts if isinstance(part, ToolCall)]
        return unused_call_id(given, self._earlier_ids)


MAX_PAUSE_SECONDS = 2.0
"""The longest rate-limit pause that a step waits for if another worker can be asked instead."""
HEDGE_LOSS = (HEDGE_LOST, "another worker was faster")
"""Failure code and message of a call cancelled because another worker answered first."""


class CallRace(Protocol):
    """Concurrent calls for one step, one of which supplies the reply."""

    speaker: WorkerCall | None
    """The call whose fragments are streamed; None: no call has sent one."""

    def may_emit(self, call: WorkerCall) -> bool:
        """Return True if the call may stream; the first call that asks becomes the speaker."""
        ...


class StepState:
    """The state of a step in this run's round `number`."""

    def __init__(self, context: RunContext, workflow: Workflow, number: int, index: int) -> None:
        self.context = context
        self.workflow = workflow
        self.number = number
        self.index = index
        self.step: Step = workflow.steps[index]
        self.gives_answer = index == len(workflow) - 1 or context.asks_whole
        """Whether the step's reply is an answer: the last step's, or every step's if each is asked
        the whole question."""
        before = context.earlier_steps(number).get(index)
        kept = before is not None and before.worker in context.pool
        self.worker: WorkerId = before.worker if before and kept else self.step.worker
        """The worker that is asked now. At first it is the planned worker or, if it is still in the
        pool, the worker that called the client's tools in an earlier run."""
        self.others: list[Worker] | None = None
        """The remaining substitutes; None until they are looked up."""
        self.as_fallback = before is not None and before.as_fallback
        """Whether the whole question is asked because no worker could answer the step."""
        self.attempts: list[Attempt] = []
        """The failed and overtaken calls so far."""
        self.request: Request | None = None
        """The newest request that was built for a worker; None: there is none yet."""
        self.calls: list[WorkerCall] = []
        """The calls in flight, and those that have ended but are not recorded yet."""
        self.start = 0.0
        """When the step began, in seconds since the run began; 0 before that."""
        self.has_shown_text = False
        """Whether the client has received part of this step's text as the answer."""

    async def record_attempt(self, failure: Failure, worker: WorkerId) -> None:
        """Record and publish a failed attempt, which the caller has already charged."""
        self.calls = [
            call for call in self.calls if call.worker.id != worker or call.result is None
        ]
        attempt = Attempt(worker, failure, self.context.elapsed())
        self.attempts.append(attempt)
        await self.context.publish(StepRetried(self.number, self.index, attempt))

    def substitutes(self) -> list[Worker]:
        """Return the workers that can still replace the current one, best first.

        There are none if the settings forbid substitutes. The caller removes those that it asks.
        """
        if self.others is None:
            self.others = (
                substitute_workers(self.context, self.workflow, self.index, self.worker)
                if self.context.settings.fallback
                else []
            )
        return self.others

    def may_be_empty(self, reply: Reply) -> bool:
        """Return True if the step may return `reply`, which is empty.

        An answer may be empty if its worker is asked alone, as the reply is then passed on
        unchanged, or if `allows_empty` returns True; but not if it says that it calls tools.
        """
        if not self.gives_answer or reply.finish is Finish.TOOL_CALLS:
            return False
        alone = len(self.workflow) == 1 or self.as_fallback
        return alone or allows_empty(self.context.question, reply)

    def build_request(self, worker: Worker) -> Request:
        """Return the request for the worker, with a sentence in place of what it cannot see."""
        if self.as_fallback:
            request = whole_question_request(self.context, self.number, worker)
        else:
            request = step_request(
                self.context, self.workflow, number=self.number, index=self.index, worker=worker
            )
        question, pool = self.context.question, self.context.pool
        lacked = lacked_tags(question, pool, worker)
        is_blind, reads = VISION not in worker.tags, not is_plain(self.step)
        if is_blind and reads and made_pictures(self.step, self.context.rounds):
            lacked |= {VISION}
        return show_seen(request, lacked)

    async def apply_guardrails(self, reply: Reply) -> Reply | Failure:
        """Return the reply as edited by the guardrails, or a failure if a policy blocks it.

        Every action of a guardrail is published.
        """
        stage = GuardrailStage.OUTPUT if self.gives_answer else GuardrailStage.BETWEEN
        guardrails = self.context.settings.guardrails
        if stage not in guardrails.stages:
            return reply
        clean, acts, blocked = await guardrails.check_reply(reply, stage, self.index)
        for act in acts:
            await self.context.publish(act)
        if not blocked:
            return clean
        message = describe_block(blocked, acts, f"the reply of {self.worker}")
        return Failure(code="policy_blocked", message=message, usage=reply.usage, cost=reply.cost)


class WorkerCall:
    """One call in flight; also the listener passed to the worker's client."""

    def __init__(self, step: StepState, worker: Worker, hold: Hold) -> None:
        self.step = step
        self.context = step.context
        self.worker = worker
        self.request: Request = hold.request
        self.hold: Hold | None = hold
        """The reservation for the current attempt and the finished turns; None once they were
        charged."""
        self.streaming = step.context.emit is not None
        self._received: list[str] = []
        """The text, reasoning and tool arguments received in the current attempt."""
        self._buffered = self._new_buffer()
        """Fragments held back until a tool is called; None if none must be called, or one was."""
        self._json_filter = self._new_filter()
        """Filter for a live answer that must be JSON; None if all text may be streamed."""
        self.has_emitted = False
        """Whether any fragment of the current attempt was streamed."""
        self._turns = (ZERO_USAGE, ZERO_COST)
        """Tokens and cost of the finished turns of a call in which the model calls tools."""
        self._turn_start = 0
        """Number of texts in `_received` that belong to finished turns."""
        self._is_idle = False
        """Whether the model is not being called: between two turns or two attempts."""
        self.hedge: CallRace | None = None
        """The race with another call for the same step; None if there is none."""
        self.scope: anyio.CancelScope | None = None
        """The cancel scope of this call alone; None without a timeout and a race."""
        self.result: Reply | Failure | None = None
        """The reply or failure, from the moment the call has ended."""
        # An only worker's ids are kept: the client may also send the conversation to it directly.
        renames = len(step.workflow) > 1 or len(step.context.pool) > 1
        self._tools = OfferedTools(self.request, self._make_call_id if renames else None)

    # -- the listener ---------------------------------------------------------------------

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Reserve a further call within this one: of the model, or of a tool that it has called.

        The first call was reserved before it was made. If the call was charged already, the request
        is returned unchanged.

        Raises:
            LimitReachedError: the tokens are used up, or the call may cost more than the budget has
                left.
        """
        if self.hold is None:
            return request
        more = await self.context.reserve(request, worker, waits=False)
        self.context.budget.join_holds(self.hold, more)
        self._is_idle = False
        return more.request

    def note_turns(self, usage: Usage, cost: Cost) -> None:
        """Lower the reservation to what was spent, unless the tokens or the price are unknown."""
        self._turns, self._is_idle = (usage, cost), True
        self._turn_start = len(self._received)
        if self.hold is not None and not usage.estimated and not cost.unpriced_calls:
            self.context.budget.lower_hold(self.hold, cost.usd)

    async def on_delta(self, delta: Delta) -> None:
        """Record a fragment and stream what may be streamed."""
        self._received += (delta.text, delta.reasoning, delta.tool_arguments)
        if self.hedge is not None and not self.hedge.may_emit(self):
            return
        for each in self._streamable_deltas(delta):
            await self._emit(each)

    def _streamable_deltas(self, delta: Delta) -> Sequence[Delta]:
        """Return the fragments that may be streamed now, including those held back until now."""
        if delta.tool_index is not None:
            named = self._tools.renumber_delta(delta, delta.tool_index)
            if named is None:
                return ()
            held, self._buffered = self._buffered or [], None
            if self._json_filter is not None and (text := self._json_filter.release()):
                held.append(Delta(text=text))  # with a tool call the text need not be JSON
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
        is_answer = step.gives_answer and self.context.shows_answer(step.number)
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
        """Charge and record a failed attempt, and reserve or forbid another.

        Raises:
            LimitReachedError: the budget forbids another attempt.
            StreamInterruptedError: the client has already received part of this answer.
            RateLimitError: the provider asks for a long pause and another worker can be asked; the
                attempt is charged when the call ends.
        """
        failure = replace(failure, message=clean_message(failure.message))
        if self._asks_long_pause(failure) and self.step.substitutes():
            # Charged and recorded when the call ends.
            usage, cost = failure.usage, failure.cost
            wait = failure.retry_after
            raise RateLimitError(failure.message, retry_after=wait, usage=usage, cost=cost)
        hold, spent = self.hold, self._turns[1].usd
        self.context.budget.charge(failure.usage, failure.cost, hold, keeps=spent)
        self._is_idle = True
        await self.step.record_attempt(failure, self.worker.id)
        if self.is_exposed:
            raise StreamInterruptedError(failure.message)
        # A call that keeps money must not wait: it might wait for itself.
        self.hold = await self.context.reserve(
            self.request, self.worker, whole=True, waits=not spent
        )
        self._is_idle = False
        if hold is not None:
            self.context.budget.join_holds(self.hold, hold)
        self._received, self._turn_start = [], 0
        self.has_emitted, self._buffered = False, self._new_buffer()
        self._json_filter = self._new_filter()
        self._tools.forget_calls()

    @staticmethod
    def _asks_long_pause(failure: Failure) -> bool:
        """Return True if a rate limit demands a longer pause than `MAX_PAUSE_SECONDS`."""
        wait = failure.retry_after
        return failure.code == RateLimitError.code and wait is not None and wait > MAX_PAUSE_SECONDS

    # -- calling --------------------------------------------------------------------------

    @property
    def has_received(self) -> bool:
        """True if text, reasoning or arguments were received in the current attempt."""
        return any(self._received)

    @property
    def is_exposed(self) -> bool:
        """True if the client has received part of this call's reply as the answer."""
        seen = self.hedge is None or self.hedge.speaker is self
        live = self.step.gives_answer and self.context.shows_answer(self.step.number)
        return live and self.has_emitted and seen

    def _new_buffer(self) -> list[Delta] | None:
        """Return a buffer if the reply must call a tool: nothing is streamed before it does."""
        return [] if needs_call(self.request) else None

    def _new_filter(self) -> JsonTextFilter | None:
        """Return a filter for a live answer with a response format; None for other replies."""
        step, context = self.step, self.context
        if context.question.response_format is None:
            return None
        if not step.gives_answer or not context.shows_answer(step.number):
            return None
        return JsonTextFilter()

    async def run(self, timeout_seconds: float | None) -> Reply | Failure:
        """Make and charge the call; return its reply after the guardrails, or its failure.

        Args:
            timeout_seconds: seconds after which the call is cancelled, unless the client has
                received part of its reply; None: it is never cancelled for lateness.
        """
        self.step.calls.append(self)
        if timeout_seconds is None and self.hedge is None:
            self.result = await self._complete()
        else:
            await self._complete_within(timeout_seconds)
        if self.result is None:
            late = ("timed_out", f"no reply within {timeout_seconds or 0:g} s")
            self.result = self.cancel(*(late if self.hedge is None else HEDGE_LOSS))
        else:
            self._charge(self.result.usage, self.result.cost)
        if isinstance(self.result, Reply):
            return await self.step.apply_guardrails(self.result)
        if self.is_exposed:
            self.context.exposed_failure = self.result
        return self.result

    async def _complete_within(self, timeout_seconds: float | None) -> None:
        """Make the call until it ends, times out or loses to a faster call."""
        self.scope = scope = self.scope or anyio.CancelScope()
        if timeout_seconds is not None:
            scope.deadline = anyio.current_time() + timeout_seconds
        with scope:
            self.result = await self._complete()

    def cancel(self, code: str, message: str) -> Failure:
        """Return the failure of a cancelled call, with the known or estimated cost.

        Only finished turns and the attempt in flight are charged here: a call that had ended, and
        failed attempts, were charged before.
        """
        if self.result is not None:
            return Failure(
                code=code, message=message, usage=self.result.usage, cost=self.result.cost
            )
        usage, cost = self._turns
        failure = Failure(code=code, message=message, usage=usage, cost=cost)
        if self.hold is not None and not self._is_idle:
            output = tokens_from_weight(sum(map(token_weight, self._received[self._turn_start :])))
            last = Failure.estimated(code, message, self.request, self.worker.price, output=output)
            failure = replace(failure, usage=usage + last.usage, cost=cost + last.cost)
        self._charge(failure.usage, failure.cost, cancelled=True)
        return failure

    def _charge(self, usage: Usage, cost: Cost, *, cancelled: bool = False) -> None:
        """Replace the current attempt's reservation by what it consumed."""
        self.context.budget.charge(usage, cost, self.hold, cancelled=cancelled)
        self.hold = None

    async def _complete(self) -> Reply | Failure:
        """Make one call, which the worker's client may retry; an error is returned as a failure."""
        try:
            reply = await self.context.clients[self.worker.id].complete(self.request, self)
        except LimitReachedError as error:
            usage, cost = self._turns
            return Failure(code="limit", message=str(error), usage=usage, cost=cost)
        except ClientError as error:
            return Failure.of(error)
        except Exception as error:  # a bug in the engine or a client must not lose the run
            logger.exception("the client of %s raised %s", self.worker.id, type(error).__name__)
            message = f"{type(error).__name__} inside the client"
            usage, cost = self._turns
            return Failure(code="internal_error", message=message, usage=usage, cost=cost)
        own = self._tools.drop_calls(reply)
        fault = self._find_fault(own, calls_unoffered=self._tools.calls_unoffered(reply))
        return (
            own
            if fault is None
            else Failure(code=fault[0], message=fault[1], usage=reply.usage, cost=reply.cost)
        )

    def _find_fault(self, reply: Reply, *, calls_unoffered: bool) -> tuple[str, str] | None:
        """Return why the reply cannot be used, as a code and a clause; None if it can be used."""
        offers = bool(self.request.tools) and self.request.tool_choice != "none"
        if calls_unoffered and (offers or is_empty(reply)):
            # The rest of the reply may build on the call, which would never be made.
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

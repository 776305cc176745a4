"""What the calls of one step share: whom it asks, what was tried, what a reply must be."""

from __future__ import annotations

from typing import Protocol

from batuta.core import (
    Attempt,
    Failure,
    Finish,
    Reply,
    Request,
    Step,
    StepRetried,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine.context import RunContext
from batuta.engine.step_prompt import (
    allows_empty,
    step_request,
    substitute_workers,
    whole_question_request,
)
from batuta.guardrails import GuardrailStage


class CallInFlight(Protocol):
    """A call that can be cancelled."""

    worker: Worker
    request: Request

    @property
    def is_exposed(self) -> bool:
        """Whether a reader has seen a part of what it says."""
        ...

    def cancel(self, code: str, message: str) -> Failure:
        """The failure of the cancelled call, with what it has cost or is likely to have cost."""
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
        """Whether the whole question is asked, because nobody could play the step."""
        self.attempts: list[Attempt] = []
        self.request: Request | None = None
        self.calls: list[CallInFlight] = []
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
        clean, acts, blocked = await self.context.guardrails.check_reply(reply, place, self.index)
        for act in acts:
            await self.context.publish(act)
        if not blocked:
            return clean
        message = f"the policy {blocked} forbids the reply of {self.worker}"
        return Failure(code="policy_blocked", message=message, usage=reply.usage, cost=reply.cost)

"""Plays one workflow: each step starts as soon as the steps it reads have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter

import anyio

from batuta.core import (
    Attempt,
    Began,
    Client,
    Delta,
    Emit,
    Event,
    Failure,
    Pool,
    Question,
    Reply,
    Request,
    Retried,
    Sampling,
    Span,
    Spoke,
    Step,
    Stepped,
    StepRun,
    Usage,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.core.estimate import CHARACTERS_PER_TOKEN, tokens_in
from batuta.core.usage import cost_of
from batuta.engine.budget import Budget
from batuta.engine.outcome import spoken
from batuta.engine.record import Recorder
from batuta.errors import ClientError, Interrupted, LimitReached
from batuta.language import worker_messages

logger = logging.getLogger(__name__)

SUBSTITUTES = 2
"""Other workers that a step is given to, one after another, when its own fails."""


@dataclass(slots=True)
class Stage:
    """What all rounds of one run share."""

    question: Question
    pool: Pool
    clients: Mapping[WorkerId, Client]
    budget: Budget
    recorder: Recorder
    seed: int | None
    emit: Emit | None
    live: bool
    began: float = field(default_factory=perf_counter)
    limit: LimitReached | None = None
    """The limit that forbade a call, if one did."""
    exposed: Failure | None = None
    """The failure of a last step of which the reader has already seen a part."""
    late: list[Event] = field(default_factory=list[Event])
    """Events of cancelled calls: recorded, to be told when the run ends."""

    def now(self) -> float:
        """Seconds since the run began."""
        return perf_counter() - self.began

    async def tell(self, event: Event) -> None:
        """Record the event and tell the listener."""
        self.recorder.add(event)
        if self.emit is not None:
            await self.emit(event)

    def permit(self) -> None:
        """Nothing, if another call may be made.

        Raises:
            LimitReached: not another call; the run remembers which limit it was.
        """
        try:
            self.budget.check()
        except LimitReached as error:
            self.limit = error
            raise


async def execute(stage: Stage, workflow: Workflow, number: int) -> None:
    """Play `workflow` as round `number`; every step ends in a `Stepped` event."""
    if workflow.depth == len(workflow):  # a chain: nothing to run at the same time
        for index in range(len(workflow)):
            await _Play(stage, workflow, number, index).run()
        return
    missing = [set(step.access) for step in workflow.steps]

    async def follow(index: int | None) -> None:
        """Play a step, then one that waited for it; others that did get tasks of their own."""
        while index is not None:
            await _Play(stage, workflow, number, index).run()
            index = start(_released(missing, index))

    def start(ready: list[int]) -> int | None:
        for other in ready[1:]:
            group.create_task(follow(other))
        return ready[0] if ready else None

    # The standard library's group keeps the same promise at a third of the cost (bench/engine.py).
    async with asyncio.TaskGroup() as group:
        await follow(start([i for i, needs in enumerate(missing) if not needs]))


def _released(missing: list[set[int]], ended: int) -> list[int]:
    """The steps that waited for nothing but `ended`; forgets that they wait for it."""
    ready: list[int] = []
    for index, needs in enumerate(missing):
        if ended in needs:
            needs.discard(ended)
            if not needs:
                ready.append(index)
    return ready


class _Play:
    """One step while it is played; it is also the listener of its calls."""

    def __init__(self, stage: Stage, workflow: Workflow, number: int, index: int) -> None:
        self.stage = stage
        self.workflow = workflow
        self.number = number
        self.index = index
        self.step: Step = workflow.steps[index]
        self.last = index == len(workflow) - 1
        self.streaming = stage.emit is not None
        self.worker: WorkerId = self.step.worker
        self.attempts: list[Attempt] = []
        self.request: Request | None = None
        self.heard = 0
        """Characters of the present attempt."""
        self.settled = False
        """Whether the failure that ends the call was already noted and charged."""
        self.start = 0.0

    # -- the listener ---------------------------------------------------------------------

    async def spoke(self, delta: Delta) -> None:
        """A fragment: count it, pass it on."""
        self.heard += len(delta.text) + len(delta.reasoning) + len(delta.tool_arguments)
        await self.stage.tell(Spoke(self.number, self.index, delta))

    async def failed(self, failure: Failure) -> None:
        """An attempt failed and the client wants to try again: charge it, permit or forbid.

        Raises:
            LimitReached: the budget forbids another attempt.
            Interrupted: the reader has already seen a part of this answer.
        """
        await self._note(failure)
        if self.exposed:
            self.settled = True
            raise Interrupted(failure.message)
        self.stage.permit()
        self.heard = 0

    # -- playing --------------------------------------------------------------------------

    @property
    def exposed(self) -> bool:
        """Whether a reader has seen a part of this step's answer."""
        return self.stage.live and self.last and self.heard > 0

    async def run(self) -> None:
        """Play the step to its end, whatever happens."""
        self.start = self.stage.now()
        try:
            result = await self._result()
        except anyio.get_cancelled_exc_class():
            self._cancelled()
            raise
        await self.stage.tell(Stepped(self.number, self._ended(result)))

    def _ended(self, result: Reply | Failure) -> StepRun:
        span = Span(self.start, self.stage.now())
        attempts = tuple(self.attempts)
        return StepRun(
            self.index, self.step.worker, self.worker, self.request, result, span, attempts
        )

    def _cancelled(self) -> None:
        """Record what the cut call is likely to have cost; the telling waits."""
        usage = Usage()
        if self.request is not None:
            output = -(-self.heard // CHARACTERS_PER_TOKEN)
            tokens = tokens_in(self.request)
            usage = Usage(calls=1, input=tokens, output=output, estimated=1)
        cost = cost_of(usage, self.stage.pool[self.worker].price)
        self.stage.budget.charge(usage, cost)
        failure = Failure("cancelled", "the call was cancelled", usage=usage, cost=cost)
        if self.exposed:
            self.stage.exposed = failure
        event = Stepped(self.number, self._ended(failure))
        self.stage.recorder.add(event)
        self.stage.late.append(event)

    async def _result(self) -> Reply | Failure:
        """The first usable reply of the worker or its substitutes, or the last failure."""
        worker = self.stage.pool[self.step.worker]
        others: list[Worker] | None = None
        while True:
            try:
                self.stage.permit()
            except LimitReached as error:
                return Failure("limit", str(error))
            self.worker = worker.id
            self.request = self._request(worker)
            if not self.attempts:
                await self.stage.tell(Began(self.number, self.index, worker.id))
            result = await self._call(worker)
            if isinstance(result, Reply):
                return result
            others = self._substitutes() if others is None else others
            if self.exposed:
                self.stage.exposed = result
            if self.exposed or result.code == "limit" or not others:
                self.stage.budget.charge(result.usage, result.cost)
                return result
            await self._note(result)
            self.heard = 0
            worker = others.pop(0)

    async def _note(self, failure: Failure) -> None:
        """Keep and charge a failed attempt, and tell of it."""
        self.stage.budget.charge(failure.usage, failure.cost)
        attempt = Attempt(self.worker, failure, self.stage.now())
        self.attempts.append(attempt)
        await self.stage.tell(Retried(self.number, self.index, attempt))

    async def _call(self, worker: Worker) -> Reply | Failure:
        """One call with its client's own retries."""
        assert self.request is not None  # noqa: S101 - set by the only caller
        try:
            reply = await self.stage.clients[worker.id].complete(self.request, self)
        except LimitReached as error:
            return Failure("limit", str(error))
        except ClientError as error:
            return Failure(error.code, str(error)) if self.settled else Failure.of(error)
        except Exception as error:  # a fault of ours or of a client must not lose the run
            logger.exception("the client of %s raised %s", worker.id, type(error).__name__)
            return Failure("internal_error", f"{type(error).__name__} inside the client")
        if spoken(reply) is None:
            return Failure("empty_reply", "the reply is empty", usage=reply.usage, cost=reply.cost)
        self.stage.budget.charge(reply.usage, reply.cost)
        return reply

    def _substitutes(self) -> list[Worker]:
        """The best other workers that can see what is to be seen."""
        ranked = self.stage.pool.ranked()
        seeing = [worker for worker in ranked if "vision" in worker.tags]
        images = any(message.images for message in self.stage.question.messages)
        others = seeing if images and seeing else ranked
        return [worker for worker in others if worker.id != self.step.worker][:SUBSTITUTES]

    def _request(self, worker: Worker) -> Request:
        """The prompt of this step for that worker."""
        stage, question = self.stage, self.stage.question
        rounds = tuple(stage.recorder.rounds)
        messages = worker_messages(question, self.workflow, self.index, rounds)
        sampling = worker.sampling
        if stage.seed is not None:
            place = stage.seed * 1_000_003 + self.number * 101 + self.index
            sampling = Sampling(seed=place % 2**31).over(sampling)
        if not self.last:
            return Request(messages, sampling)
        return Request(
            messages,
            question.sampling.over(sampling),
            question.tools,
            question.tool_choice,
            question.parallel_tool_calls,
            question.response_format,
        )

"""A question is conducted to its end: decide, run, decide again, settle."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import anyio

from batuta.core import (
    AcceptedAnswer,
    Client,
    Conductor,
    Decision,
    Draft,
    EventHandler,
    GuardrailTriggered,
    Limits,
    MalformedPlan,
    Outcome,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Reply,
    ResumeState,
    Round,
    RoundPlanned,
    Run,
    RunFinished,
    RunHeader,
    RunId,
    Step,
    TimeSpan,
    WorkerId,
    Workflow,
)
from batuta.core.formatting import format_seconds
from batuta.distribution import package_version
from batuta.engine.budget import Budget, Funds
from batuta.engine.context import NO_TIMEOUT, Recorder, RunContext, TimeoutPolicy
from batuta.engine.execute import execute_workflow
from batuta.engine.finalize import final_reply, finalize_run
from batuta.engine.planning import PlanningListener, add_paid_draft, check_decision
from batuta.engine.workflow_estimate import (
    LatencyLookup,
    describe_estimate,
    estimate_workflow,
    no_latency,
)
from batuta.errors import LimitReachedError
from batuta.guardrails import NO_GUARDRAILS, Guardrails, GuardrailStage
from batuta.language.prompt import PROMPT_VERSION

VERSIONS = {"batuta": package_version(), "prompt": PROMPT_VERSION}
DEFAULT_RESAMPLES = 2
"""Times a malformed draft is sampled again before the best single worker answers."""
CANCEL_GRACE_SECONDS = 1.0
"""Seconds in which a cancelled run may still tell its end."""


def new_run_id() -> RunId:
    """An id that cannot be guessed."""
    return RunId(f"run_{secrets.token_hex(12)}")


async def conduct(
    question: Question,
    conductor: Conductor,
    pool: Pool,
    clients: Mapping[WorkerId, Client],
    *,
    limits: Limits | None = None,
    funds: Funds | None = None,
    seed: int | None = None,
    emit: EventHandler | None = None,
    live: bool = False,
    fallback: bool = True,
    retry_whole_question: bool = True,
    resamples: int = DEFAULT_RESAMPLES,
    model: str = "",
    parent: RunId | None = None,
    run_id: RunId | None = None,
    recorder: Recorder | None = None,
    resumed: ResumeState | None = None,
    timeouts: TimeoutPolicy | None = None,
    guardrails: Guardrails | None = None,
    guarded: Sequence[GuardrailTriggered] = (),
    dry_run: bool = False,
    latency: LatencyLookup = no_latency,
) -> Run:
    """Answer `question` by a workflow that `conductor` writes over `pool`.

    Never raises for a bad run: every run ends in an outcome, and what was spent is in it.

    Args:
        question: what is asked.
        conductor: who writes the workflow.
        pool: the workers, in the order in which the conductor sees them.
        clients: how each worker of the pool is called.
        limits: hard limits. What a call can cost at most is reserved before it is made; tokens
            are counted after it, so the calls in flight may overrun that limit.
        funds: whose money is spent, if not the caller's own; reserved in the same way.
        seed: makes sampling repeatable where the workers honour seeds.
        emit: hears every event as it happens; if given, workers are asked to stream. It is
            awaited, so a slow reader slows the workers down.
        live: a reader sees the text of the last step of the last round as it comes, so a last
            step that has begun to speak is neither tried again nor replaced; if it fails, or its
            reply has not the form that was asked for, the run has no answer.
        fallback: if no workflow can be had, the best single worker answers; where a worker fails
            another is asked in its place; and if the last step fails, an earlier round's answer is
            returned. Training turns all of it off: what is learned from is what was written.
        retry_whole_question: with `fallback`, if nobody can answer a last step and no earlier round
        has an
            answer, a worker is asked the whole question. Methods turn it off that choose among
            replies and for whom a last step is no answer.
        resamples: how often a malformed draft is sampled again.
        model: the served model's name, for the record.
        parent: the run that this one came from.
        run_id: the id to use; by default a new one.
        recorder: folds the events; pass one to have the run even if this call is cancelled.
        resumed: the workflow that goes on, now that the results of its tool calls are in the
            question; nothing is planned for it anew.
        timeouts: how long a step may take before another worker is asked.
        guardrails: what the question, the replies between agents and the answer must pass.
        guarded: what guardrails did already to what came with the question.
        dry_run: plan, estimate, and call no worker.
        latency: seconds that a call of a worker is known to take, for the estimate.

    Raises:
        anyio.get_cancelled_exc_class(): the caller cancelled; every call in flight was
            cancelled, the end was recorded and reported.
    """
    limits = limits or Limits()
    recorder = recorder or Recorder()
    guardrails = guardrails or NO_GUARDRAILS
    run_id = run_id or new_run_id()
    acts: tuple[GuardrailTriggered, ...] = ()
    forbidden = ""
    if GuardrailStage.INPUT in guardrails.stages:
        question, acts, forbidden = await guardrails.check_question(question)
    context = RunContext(
        run_id=run_id,
        question=question,
        pool=pool,
        clients=clients,
        budget=Budget(limits, funds),
        recorder=recorder,
        seed=seed,
        emit=emit,
        is_live=live
        and GuardrailStage.OUTPUT not in guardrails.stages
        and not _needs_whole_replies(question),
        resumed=resumed,
        timeouts=timeouts or NO_TIMEOUT,
        guardrails=guardrails,
        substitutes=fallback,
        retry_whole_question=fallback and retry_whole_question,
    )
    header = RunHeader(
        id=run_id,
        question=question,
        pool=pool,
        seed=seed,
        limits=limits,
        conductor=conductor.name,
        model=model,
        parent=parent,
        started=time.time(),
        versions=VERSIONS,
        resumed=resumed,
    )
    await context.publish(header)
    for act in (*guarded, *acts):
        await context.publish(act)
    if forbidden:
        await context.publish(_blocked_end(forbidden, context.elapsed()))
        return recorder.run()
    performance = _RunLoop(
        context, conductor, fallback=fallback, resamples=resamples, dry_run=dry_run
    )
    await _run_within_deadline(limits, context, performance)
    for event in context.deferred_events:
        if emit is not None:
            await emit(event)
    await context.publish(await performance.finalize(latency))
    return recorder.run()


def _needs_whole_replies(question: Question) -> bool:
    """Whether a form is asked of what cannot be checked as it comes."""
    sampling = question.sampling
    several = (sampling.choices or 1) > 1 or sampling.logprobs is not None
    return several and question.response_format is not None


async def _run_within_deadline(limits: Limits, context: RunContext, performance: _RunLoop) -> None:
    """Run until the end or the deadline.

    Raises:
        anyio.get_cancelled_exc_class(): the caller cancelled; the end was recorded and reported.
    """
    try:
        if limits.seconds is None:
            await performance.run_rounds()
            return
        with anyio.move_on_after(limits.seconds) as scope:
            await performance.run_rounds()
    except anyio.get_cancelled_exc_class():
        await _record_cancellation(context)
        raise
    if scope.cancelled_caught:
        allowed = f"{limits.seconds:g} s"
        context.limit = LimitReachedError("seconds", format_seconds(context.elapsed()), allowed)


def _blocked_end(policy: str, seconds: float) -> RunFinished:
    message = f"the policy {policy} forbids this question"
    return RunFinished(
        outcome=Outcome.REFUSED,
        answer=None,
        reply=None,
        error=message,
        error_code="policy_blocked",
        limit=None,
        seconds=seconds,
    )


def _dry_run_end(workflow: Workflow, context: RunContext, pace: LatencyLookup) -> RunFinished:
    """The end of a dry run: what would be run, in words."""
    expected = estimate_workflow(context.question, workflow, context.pool, latency=pace)
    text = describe_estimate(workflow, expected)
    return RunFinished(
        outcome=Outcome.PLANNED,
        answer=text,
        reply=Reply(text=text),
        seconds=context.elapsed(),
        expected=expected,
    )


async def _record_cancellation(context: RunContext) -> None:
    """Record and tell that the run was cancelled."""
    message = "the run was cancelled"
    end = RunFinished(
        outcome=Outcome.CANCELLED,
        answer=None,
        reply=None,
        error=message,
        error_code="cancelled",
        limit=None,
        seconds=context.elapsed(),
    )
    context.recorder.add(end)
    if context.emit is not None:
        with anyio.move_on_after(CANCEL_GRACE_SECONDS, shield=True):
            for event in (*context.deferred_events, end):
                await context.emit(event)


class _RunLoop:
    """The rounds of one run."""

    def __init__(
        self,
        context: RunContext,
        conductor: Conductor,
        *,
        fallback: bool,
        resamples: int,
        dry_run: bool = False,
    ) -> None:
        self.context = context
        self.conductor = conductor
        self.fallback = fallback
        self.resamples = resamples
        self.dry_run = dry_run
        self.rounds_exhausted = False

    async def run_rounds(self) -> None:
        """Rounds, until an answer stands or nothing more may be done."""
        context = self.context
        rounds = context.budget.limits.rounds
        for number in range(context.round_count):
            round_ = self._resumed_round() if number == 0 else None
            round_ = round_ or await self._decide(number)
            if round_ is None:
                return
            await context.publish(RoundPlanned(number, round_))
            if round_.workflow is None or self.dry_run:
                return
            await execute_workflow(context, round_.workflow, number)
            if context.limit or context.exposed_failure or context.rounds[-1].waiting_steps:
                return
        self.rounds_exhausted = rounds > 1

    def _resumed_round(self) -> Round | None:
        """The round that an earlier run began and that goes on now; it was paid there."""
        if self.context.resumed is None:
            return None
        begun = self.context.resumed.rounds[-1]
        decision = replace(begun.decision, draft=Draft(text=begun.decision.draft.text))
        now = self.context.elapsed()
        return Round(
            decision=decision, drafts=(), workflow=begun.workflow, planning=TimeSpan(now, now)
        )

    async def finalize(self, pace: LatencyLookup) -> RunFinished:
        """How the run ended."""
        context = self.context
        if self.dry_run and context.rounds and (planned := context.rounds[-1].workflow):
            return _dry_run_end(planned, context, pace)
        return finalize_run(
            context.rounds,
            seconds=context.elapsed(),
            limit=context.limit,
            capped=self.rounds_exhausted,
            exposed=context.exposed_failure,
            fallback=self.fallback,
            parallel=context.question.parallel_tool_calls is not False,
        )

    async def _decide(self, number: int) -> Round | None:
        """The round before it is run; None if a limit forbids even planning."""
        start = self.context.elapsed()
        drafts: list[MalformedPlan] = []
        decision: Decision
        while True:
            try:
                self.context.check_budget()
            except LimitReachedError:
                return self._drafts_only_round(drafts, start)
            listener = PlanningListener(self.context)
            try:
                decision = await self._plan(len(drafts), listener)
            except anyio.get_cancelled_exc_class():
                cut = listener.with_failed_attempts(
                    MalformedPlan(draft=Draft(), reason="planning was cancelled", outage=True)
                )
                drafts.append(cast("MalformedPlan", cut))
                self._record_cancelled_planning(number, drafts, start)
                raise
            if listener.limit_reached:
                return self._drafts_only_round(add_paid_draft(decision, drafts), start)
            if not isinstance(decision, MalformedPlan) or not decision.again:
                break
            if len(drafts) >= self.resamples:
                break
            drafts.append(decision)
        workflow = self._choose_workflow(decision)
        span = TimeSpan(start, self.context.elapsed())
        return Round(decision=decision, drafts=tuple(drafts), workflow=workflow, planning=span)

    def _record_cancelled_planning(
        self, number: int, drafts: list[MalformedPlan], start: float
    ) -> None:
        """Record what planning cost until it was cut; the telling waits."""
        round_ = self._drafts_only_round(drafts, start)
        if round_ is not None:
            event = RoundPlanned(number, round_)
            self.context.recorder.add(event)
            self.context.deferred_events.append(event)

    def _drafts_only_round(self, drafts: list[MalformedPlan], start: float) -> Round | None:
        """What was drafted before the limit, so that its tokens are in the record."""
        if not drafts:
            return None
        span = TimeSpan(start, self.context.elapsed())
        return Round(decision=drafts[-1], drafts=tuple(drafts[:-1]), workflow=None, planning=span)

    async def _plan(self, sample: int, listener: PlanningListener) -> Decision:
        """One decision of the conductor, charged and checked."""
        context = self.context
        planning_context = PlanningContext(
            question=context.question,
            pool=context.pool,
            seed=context.seed or 0,
            sample=sample,
            max_steps=context.budget.limits.steps,
            previous=context.rounds,
        )
        decision = await self.conductor.plan(planning_context, listener)
        listener.charge(decision.draft.usage, decision.draft.cost)
        return check_decision(listener.with_failed_attempts(decision), planning_context)

    def _choose_workflow(self, decision: Decision) -> Workflow | None:
        """What is run because of the decision."""
        if isinstance(decision, Plan):
            return decision.workflow
        rounds = self.context.rounds
        stands = bool(rounds) and final_reply(rounds[-1]) is not None
        if isinstance(decision, AcceptedAnswer) or stands or not self.fallback:
            return None
        best = self.context.pool.ranked()[0]
        return Workflow((Step(subtask="", worker=best.id),))

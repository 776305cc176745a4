"""Conducts a question to its end: plan a round, run it, plan again, finalize."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast

import anyio

from batuta.core import (
    AcceptedAnswer,
    Client,
    Conductor,
    Decision,
    Draft,
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
from batuta.engine.approval import gate_round
from batuta.engine.budget import Budget
from batuta.engine.confidence import state_confidence
from batuta.engine.context import Recorder, RunContext, RunHooks, RunSettings, WorkflowRevision
from batuta.engine.execute import execute_workflow
from batuta.engine.finalize import final_reply, finalize_run
from batuta.engine.grounding import GroundingCheck
from batuta.engine.planning import (
    PlanCheck,
    PlanningListener,
    check_decision,
    find_affordable,
    keep_resumed,
    refused_end,
    restrict_workers,
)
from batuta.engine.samples import take_samples
from batuta.engine.side_calls import run_single_step
from batuta.engine.step_prompt import able_workers, give_sight, workers_before
from batuta.engine.workflow_estimate import LatencyLookup, describe_estimate, estimate_workflow
from batuta.errors import LimitReachedError
from batuta.guardrails import GuardrailStage, describe_block
from batuta.language.plan_rules import NO_RULES
from batuta.language.prompt import PROMPT_VERSION

VERSIONS = {"batuta": package_version(), "prompt": PROMPT_VERSION}
DEFAULT_SETTINGS = RunSettings()
NO_HOOKS = RunHooks()
CANCEL_GRACE_SECONDS = 1.0
"""Seconds that a cancelled run has to publish its last events."""


def new_run_id() -> RunId:
    """Return an id that cannot be guessed."""
    return RunId(f"run_{secrets.token_hex(12)}")


async def conduct(
    question: Question,
    conductor: Conductor,
    pool: Pool,
    clients: Mapping[WorkerId, Client],
    *,
    limits: Limits | None = None,
    seed: int | None = None,
    resumed: ResumeState | None = None,
    settings: RunSettings = DEFAULT_SETTINGS,
    hooks: RunHooks = NO_HOOKS,
) -> Run:
    """Answer `question` by a workflow that `conductor` writes over `pool`.

    A failed run is returned, not raised: it has an outcome and records what was spent.

    Args:
        question: what is asked.
        conductor: writes the workflow.
        pool: the workers, in the order in which the conductor sees them.
        clients: the client that calls each worker of the pool.
        limits: hard limits; None: the defaults of `Limits`. The maximum cost of a call is reserved
            before the call; tokens are counted after the call, so that the calls in flight may
            exceed the limit on tokens.
        seed: makes sampling repeatable where the workers honour seeds.
        resumed: the workflow to continue, now that the question contains the results of its
            tool calls; a new one is planned only if it breaks a plan rule.
        settings: how the run is executed: fallback, timeouts, guardrails and the like.
        hooks: the run's id, budget and listeners.

    Raises:
        anyio.get_cancelled_exc_class(): the caller cancelled. Every call in flight was cancelled.
            If planning had begun, the end was recorded and published; publishing it takes at most
            `CANCEL_GRACE_SECONDS`.
        Exception: raised by `hooks.emit` or the conductor, perhaps within an ExceptionGroup.
    """
    limits, recorder = limits or Limits(), hooks.recorder or Recorder()
    guardrails = settings.guardrails
    acts: tuple[GuardrailTriggered, ...] = ()
    forbidden = ""
    if GuardrailStage.INPUT in guardrails.stages:
        question, acts, forbidden = await guardrails.check_question(question)
    rules = settings.plan_rules
    if rules is not NO_RULES:
        rules = rules.of_tags(question.tags)
        pool, clients, left_out = restrict_workers(rules, pool, clients)
        acts, resumed = (*acts, *left_out), keep_resumed(rules, resumed)
    context = RunContext(
        run_id=hooks.run_id or new_run_id(),
        question=question,
        pool=pool,
        clients=clients,
        rules=rules,
        budget=Budget(limits, hooks.funds),
        recorder=recorder,
        seed=seed,
        emit=hooks.emit,
        resumed=resumed,
        settings=settings,
        approve=hooks.approve,
    )
    await context.publish(_run_header(context, conductor, hooks))
    for act in (*hooks.guarded, *acts):
        await context.publish(act)
    if forbidden:
        await context.publish(_blocked_end(forbidden, acts, context.elapsed()))
        return recorder.run()
    if not context.clients and (rule := rules.forbidding_rule(pool.workers[0].id)):
        await context.publish(refused_end(rule, context.elapsed()))
        return recorder.run()
    loop = _RunLoop(context, conductor, hooks.revise)
    try:
        await _run_within_deadline(limits, context, loop)
        await _publish_deferred(context)
        await context.publish(await loop.finalize(hooks.latency))
    except anyio.get_cancelled_exc_class():
        await _record_cancellation(context)
        raise
    return recorder.run()


def _run_header(context: RunContext, conductor: Conductor, hooks: RunHooks) -> RunHeader:
    return RunHeader(
        id=context.run_id,
        question=context.question,
        pool=context.pool,
        seed=context.seed,
        limits=context.budget.limits,
        conductor=conductor.name,
        model=hooks.model,
        parent=hooks.parent,
        started=time.time(),
        versions=VERSIONS,
        resumed=context.resumed,
    )


async def _run_within_deadline(limits: Limits, context: RunContext, loop: _RunLoop) -> None:
    """Run to the end; if the deadline comes first, store it as the context's limit."""
    if limits.seconds is None:
        await loop.run()
        return
    with anyio.move_on_after(limits.seconds) as scope:
        context.deadline = scope
        await loop.run()
    if scope.cancelled_caught:
        spent, allowed = (format_seconds(each) for each in (context.elapsed(), limits.seconds or 0))
        context.limit = LimitReachedError("seconds", spent, allowed)


def _blocked_end(policy: str, acts: Iterable[GuardrailTriggered], seconds: float) -> RunFinished:
    message = describe_block(policy, acts, "this question")
    return RunFinished(
        outcome=Outcome.REFUSED,
        error=message,
        error_code="policy_blocked",
        seconds=seconds,
    )


def _dry_run_end(
    workflow: Workflow, context: RunContext, conductor: str, latency: LatencyLookup
) -> RunFinished:
    """Return the end of a dry run; its answer describes what would be run."""
    model = context.settings.confidence
    again = None if model is None else model.expected_samples(conductor, workflow)
    expected = estimate_workflow(
        context.question, workflow, context.pool, latency=latency, again=again
    )
    text = describe_estimate(workflow, expected)
    return RunFinished(
        outcome=Outcome.PLANNED,
        answer=text,
        reply=Reply(text=text),
        seconds=context.elapsed(),
        expected=expected,
    )


async def _record_cancellation(context: RunContext) -> None:
    """Record and publish that the run was cancelled, unless its end is recorded already.

    Publishing takes at most `CANCEL_GRACE_SECONDS`.
    """
    if context.recorder.ended is not None:
        return
    end = RunFinished(
        outcome=Outcome.CANCELLED,
        error="the run was cancelled",
        error_code="cancelled",
        seconds=context.elapsed(),
    )
    context.recorder.add(end)
    if context.emit is not None:
        with anyio.move_on_after(CANCEL_GRACE_SECONDS, shield=True):
            await _publish_deferred(context)
            await context.emit(end)


async def _publish_deferred(context: RunContext) -> None:
    """Pass the events of cancelled calls, which are already recorded, to the listener."""
    while context.deferred_events:
        event = context.deferred_events.pop(0)
        if context.emit is not None:
            await context.emit(event)


class _RunLoop:
    """The rounds of one run."""

    def __init__(
        self, context: RunContext, conductor: Conductor, revise: WorkflowRevision | None = None
    ) -> None:
        self.context = context
        self.revise = revise
        self.settings = context.settings
        self.conductor = conductor
        self.rounds_exhausted = False
        """Whether the last of several allowed rounds was run."""
        self.check: PlanCheck | None = None
        """The plan-rule check of the last round; None if there are no rules."""
        self.unapproved: RunFinished | None = None
        """The run's end if its plan was not approved; None otherwise."""
        policy = self.settings.guardrails.grounded
        self.grounding = GroundingCheck(context, policy) if policy is not None else None

    async def run(self) -> None:
        """Run the rounds, then take samples of their answer, ask another worker and check sources.

        Each of the three happens only if the settings require it.
        """
        await self.run_rounds()
        if self.settings.min_confidence is not None:
            await self.sample_answer()
            await self.ask_another()
        await self.check_grounds()
        if self.settings.min_confidence is None:  # nothing depends on the samples: they come last
            await self.sample_answer()

    async def run_rounds(self) -> None:
        """Run rounds until there is nothing more to run, or no further round is allowed.

        The rounds also end at a limit, after the plan of a dry run, at a plan that is not approved,
        when a step waits for the client's tools, and when an answer that the client sees in part
        has failed.
        """
        context = self.context
        rounds = context.budget.limits.rounds
        for number in range(context.round_count):
            round_ = self._resumed_round() if number == 0 else None
            round_ = round_ or await self._decide(number)
            if round_ is None:
                return
            await context.publish(RoundPlanned(number, round_))
            if round_.workflow is None or self.settings.dry_run:
                return
            # The plan of a round that an earlier run began was already approved.
            is_resumed = number == 0 and context.resumed is not None
            if self.settings.approvals and not is_resumed:
                self.unapproved = await gate_round(context, number, round_, editable=True)
            if self.unapproved is not None:
                return
            await execute_workflow(
                context, context.recorder.rounds[number].workflow or round_.workflow, number
            )
            if context.limit or context.exposed_failure or context.rounds[-1].waiting_steps:
                return
        self.rounds_exhausted = rounds > 1

    async def sample_answer(self) -> None:
        """Ask the question again if the confidence model uses or collects samples of the answer."""
        model = self.settings.confidence
        if model is None or model.samples is None or self.settings.dry_run:
            return
        ended = self.finalize_rounds()
        if self.grounding is None or self.grounding.keeps(ended):
            await take_samples(self.context, model, self.conductor.name, ended)

    async def ask_another(self) -> None:
        """Ask one more worker the whole question if the confidence is too low or unknown."""
        context, settings = self.context, self.settings
        if settings.dry_run or not settings.fallback:
            return
        if context.limit or self.finalize_rounds().outcome is not Outcome.UNSURE:
            return
        rounds = [round_ for round_ in context.rounds if not round_.is_aside]
        asked = {step.worker for round_ in rounds for step in round_.steps}
        able = able_workers(context.question, list(context.pool.ranked()))
        other = next((worker.id for worker in able if worker.id not in asked), None)
        if other is None:
            return
        workflow = Workflow((Step(subtask="", worker=other),))
        if context.rules.find_broken(workflow, workers_before(rounds)) is not None:
            return
        # If this step is not approved, the present answer is kept.
        await run_single_step(
            context, other, "the previous answer's confidence was too low or unknown"
        )

    async def check_grounds(self) -> None:
        """Check the answer against its sources if a policy requires it."""
        if self.grounding is not None and not self.settings.dry_run:
            await self.grounding.check(self.finalize_rounds())

    def _resumed_round(self) -> Round | None:
        """Return the round that an earlier run began and paid to plan; None if there is none."""
        if self.context.resumed is None:
            return None
        begun = self.context.resumed.rounds[-1]
        decision = replace(begun.decision, draft=Draft(text=begun.decision.draft.text))
        now = self.context.elapsed()
        return Round(decision=decision, workflow=begun.workflow, planning=TimeSpan(now, now))

    async def finalize(self, latency: LatencyLookup) -> RunFinished:
        """Return the run's last event; the estimate of a dry run uses `latency`."""
        context = self.context
        if self.settings.dry_run and context.rounds and (planned := context.rounds[-1].workflow):
            return _dry_run_end(planned, context, self.conductor.name, latency)
        ended = self.finalize_rounds()
        return ended if self.grounding is None else await self.grounding.finalize(ended)

    def finalize_rounds(self) -> RunFinished:
        """Return the run's end if no further round were run, with the answer's confidence."""
        context = self.context
        if self.unapproved is not None:
            return replace(self.unapproved, seconds=context.elapsed())
        ended = finalize_run(
            context.rounds,
            seconds=context.elapsed(),
            limit=context.limit,
            rounds_exhausted=self.rounds_exhausted,
            exposed=context.exposed_failure,
            fallback=self.settings.fallback,
            parallel=context.question.parallel_tool_calls is not False,
        )
        if self.check is not None:
            ended = self.check.end(ended)
        if self.settings.confidence is None:
            return ended
        return state_confidence(
            ended,
            context.rounds,
            model=self.settings.confidence,
            conductor=self.conductor.name,
            least=self.settings.min_confidence,
        )

    async def _decide(self, number: int) -> Round | None:
        """Return the planned round; None if a limit forbids planning and no draft was written."""
        start = self.context.elapsed()
        drafts: list[MalformedPlan] = []
        decision: Decision
        self.check = None if self.context.rules is NO_RULES else PlanCheck(self.context)
        while True:
            try:
                self.context.check_budget()
            except LimitReachedError:
                return self._drafts_only_round(drafts, start)
            listener = PlanningListener(self.context)
            try:
                decision = await self._plan(len(drafts), listener)
            except anyio.get_cancelled_exc_class():
                cancelled = listener.with_failed_attempts(
                    MalformedPlan(draft=Draft(), reason="planning was cancelled", outage=True)
                )
                drafts.append(cast("MalformedPlan", cancelled))
                self._record_cancelled_planning(number, drafts, start)
                raise
            if listener.limit_reached and not isinstance(decision, Plan):
                is_malformed = isinstance(decision, MalformedPlan)
                paid = (decision,) if is_malformed and decision.draft.usage.calls else ()
                return await self._answer_alone([*drafts, *paid], start)
            again = await self._as_rejected_draft(decision, len(drafts))
            if again is None:
                break
            drafts.append(again)
        decision, workflow = self._revised(decision, self._choose_workflow(decision))
        if workflow is not None:
            workflow = give_sight(workflow, self.context.question, self.context.pool)
        return await self._settle(decision, drafts, workflow, start)

    async def _answer_alone(self, drafts: list[MalformedPlan], start: float) -> Round | None:
        """Return a round in which the best affordable worker answers, since no draft is affordable.

        If no worker is affordable, a round was already run, or fallback is off, return a round of
        the drafts alone; None if there are no drafts.
        """
        context = self.context
        reason = str(context.limit)
        may_answer = self.settings.fallback and not context.rounds
        best = await find_affordable(context) if may_answer else None
        if best is None:
            return self._drafts_only_round(drafts, start)
        reason = f"{reason}; {best} answers alone, the best worker that is affordable"
        decision = MalformedPlan(draft=Draft(), reason=reason)
        workflow = Workflow((Step(subtask="", worker=best),))
        return await self._settle(decision, drafts, workflow, start)

    async def _settle(
        self,
        decision: Decision,
        drafts: list[MalformedPlan],
        workflow: Workflow | None,
        start: float,
    ) -> Round:
        """Return the round after applying the plan rules to it."""
        span = TimeSpan(start, self.context.elapsed())
        planned = Round(decision=decision, drafts=tuple(drafts), workflow=workflow, planning=span)
        if workflow is None or self.check is None:
            return planned
        return await self.check.settle(planned, workflow)

    def _revised(
        self, decision: Decision, workflow: Workflow | None
    ) -> tuple[Decision, Workflow | None]:
        """Return the decision with the reason for its workflow, and the workflow to run."""
        if workflow is None or self.revise is None:
            return decision, workflow
        workflow, reason = self.revise(workflow)
        if isinstance(decision, Plan):
            decision = replace(decision, reason=reason)
        return decision, workflow

    async def _as_rejected_draft(self, decision: Decision, count: int) -> MalformedPlan | None:
        """Return the decision as a rejected draft if another is needed; None if it is final.

        `count` is the number of drafts that were rejected before.
        """
        if isinstance(decision, Plan):
            return None if self.check is None else await self.check.send_back(decision)
        if not isinstance(decision, MalformedPlan) or not decision.again:
            return None
        return decision if count < self.settings.resamples else None

    def _record_cancelled_planning(
        self, number: int, drafts: list[MalformedPlan], start: float
    ) -> None:
        """Record what planning cost until it was cancelled; the event is published later."""
        round_ = self._drafts_only_round(drafts, start)
        if round_ is not None:
            event = RoundPlanned(number, round_)
            self.context.recorder.add(event)
            self.context.deferred_events.append(event)

    def _drafts_only_round(self, drafts: list[MalformedPlan], start: float) -> Round | None:
        """Return a round that keeps only the drafts and their usage; None if there are none."""
        if not drafts:
            return None
        span = TimeSpan(start, self.context.elapsed())
        return Round(decision=drafts[-1], drafts=tuple(drafts[:-1]), workflow=None, planning=span)

    async def _plan(self, sample: int, listener: PlanningListener) -> Decision:
        """Return one decision of the conductor, charged and checked."""
        context = self.context
        planning_context = PlanningContext(
            question=context.question,
            pool=context.pool,
            seed=context.seed or 0,
            sample=sample,
            max_steps=context.budget.limits.steps,
            previous=context.rounds,
            forbidden=() if context.rules is NO_RULES else context.rules.forbidden,
            objection=None if self.check is None else self.check.objection,
        )
        decision = await self.conductor.plan(planning_context, listener)
        listener.charge(decision.draft.usage, decision.draft.cost)
        return check_decision(listener.with_failed_attempts(decision), planning_context)

    def _choose_workflow(self, decision: Decision) -> Workflow | None:
        """Return the plan's workflow, or one of the best worker alone; None: nothing is run.

        Without a plan nothing is run if the conductor accepts the answer, if the last round has
        one, or if fallback is off.
        """
        if isinstance(decision, Plan):
            return decision.workflow
        rounds = self.context.rounds
        answered = bool(rounds) and final_reply(rounds[-1]) is not None
        if isinstance(decision, AcceptedAnswer) or answered or not self.settings.fallback:
            return None
        best = self.context.pool.ranked()[0]
        return Workflow((Step(subtask="", worker=best.id),))

"""A question is conducted to its end: decide, play, decide again, settle."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import cast

import anyio

from batuta.core import (
    Accepted,
    Brief,
    Client,
    Conductor,
    Decision,
    Draft,
    Emit,
    Ended,
    Header,
    Limits,
    Malformed,
    Outcome,
    Plan,
    Planned,
    Pool,
    Question,
    Reply,
    Resumed,
    Round,
    Run,
    RunId,
    Span,
    Step,
    WorkerId,
    Workflow,
)
from batuta.engine.budget import Budget, Funds
from batuta.engine.estimate import Pace, described, estimate, no_pace
from batuta.engine.execute import execute
from batuta.engine.outcome import final_reply, settle
from batuta.engine.planning import PlanningListener, check_decision, with_paid
from batuta.engine.record import Recorder
from batuta.engine.resume import waiting
from batuta.engine.stage import NO_END, NO_POLICIES, Patience, Stage
from batuta.errors import LimitReached
from batuta.policies import Place, Policies

VERSIONS = {"batuta": version("batuta"), "prompt": "1"}
RESAMPLES = 2
"""Times a malformed draft is sampled again before the best single worker answers."""
LAST_WORDS = 1.0
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
    emit: Emit | None = None,
    live: bool = False,
    fallback: bool = True,
    asks_anew: bool = True,
    resamples: int = RESAMPLES,
    model: str = "",
    parent: RunId | None = None,
    run_id: RunId | None = None,
    recorder: Recorder | None = None,
    resumed: Resumed | None = None,
    patience: Patience | None = None,
    policies: Policies | None = None,
    dry_run: bool = False,
    pace: Pace = no_pace,
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
        live: a reader sees the last step's text as it comes, so a last step that has begun to
            speak is neither tried again nor replaced; if it fails the run has no answer.
        fallback: if no workflow can be had, the best single worker answers; and if the last
            step fails, an earlier round's answer is returned. Training turns it off.
        asks_anew: with `fallback`, if nobody can play a last step and no earlier round has an
            answer, a worker is asked the whole question. Methods turn it off that choose among
            replies and for whom a last step is no answer.
        resamples: how often a malformed draft is sampled again.
        model: the served model's name, for the record.
        parent: the run that this one came from.
        run_id: the id to use; by default a new one.
        recorder: folds the events; pass one to have the run even if this call is cancelled.
        resumed: the workflow that goes on, now that the results of its tool calls are in the
            question; nothing is planned for it anew.
        patience: how long a step may take before another worker is asked.
        policies: what the question, the replies between agents and the answer must pass.
        dry_run: plan, estimate, and call nobody to play.
        pace: seconds that a call of a worker is known to take, for the estimate.

    Raises:
        anyio.get_cancelled_exc_class(): the caller cancelled; every call in flight was
            cancelled, the end was recorded and told.
    """
    limits = limits or Limits()
    recorder = recorder or Recorder()
    policies = policies or NO_POLICIES
    run_id = run_id or new_run_id()
    question, acts, forbidden = await policies.question(question)
    stage = Stage(
        run_id,
        question,
        pool,
        clients,
        Budget(limits, funds),
        recorder,
        seed,
        emit,
        live and not policies.on(Place.OUTPUT) and question.response_format is None,
        resumed,
        patience or NO_END,
        policies,
        fallback and asks_anew,
    )
    header = Header(
        run_id,
        question,
        pool,
        seed,
        limits,
        conductor.name,
        model,
        parent,
        time.time(),
        VERSIONS,
        resumed,
    )
    await stage.tell(header)
    for act in acts:
        await stage.tell(act)
    if forbidden:
        await stage.tell(_forbidden(forbidden, stage.now()))
        return recorder.run()
    performance = _Performance(
        stage, conductor, fallback=fallback, resamples=resamples, dry_run=dry_run
    )
    await _within(limits, stage, performance)
    for event in stage.late:
        if emit is not None:
            await emit(event)
    await stage.tell(await performance.settle(pace))
    return recorder.run()


async def _within(limits: Limits, stage: Stage, performance: _Performance) -> None:
    """Play until the end or the deadline.

    Raises:
        anyio.get_cancelled_exc_class(): the caller cancelled; the end was recorded and told.
    """
    try:
        if limits.seconds is None:
            await performance.play()
            return
        with anyio.move_on_after(limits.seconds) as scope:
            await performance.play()
    except anyio.get_cancelled_exc_class():
        await _last_words(stage)
        raise
    if scope.cancelled_caught:
        allowed = f"{limits.seconds:g} s"
        stage.limit = LimitReached("seconds", f"{stage.now():.2f} s", allowed)


def _forbidden(policy: str, seconds: float) -> Ended:
    message = f"the policy {policy} forbids this question"
    return Ended(Outcome.REFUSED, None, None, message, "policy_blocked", None, seconds)


def _planned(workflow: Workflow, stage: Stage, pace: Pace) -> Ended:
    """The end of a dry run: what would be played, in words."""
    expected = estimate(stage.question, workflow, stage.pool, pace=pace)
    text = described(workflow, expected)
    return Ended(Outcome.PLANNED, text, Reply(text), seconds=stage.now(), expected=expected)


async def _last_words(stage: Stage) -> None:
    """Record and tell that the run was cancelled."""
    message = "the run was cancelled"
    end = Ended(Outcome.CANCELLED, None, None, message, "cancelled", None, stage.now())
    stage.recorder.add(end)
    if stage.emit is not None:
        with anyio.move_on_after(LAST_WORDS, shield=True):
            for event in (*stage.late, end):
                await stage.emit(event)


class _Performance:
    """The rounds of one run."""

    def __init__(
        self,
        stage: Stage,
        conductor: Conductor,
        *,
        fallback: bool,
        resamples: int,
        dry_run: bool = False,
    ) -> None:
        self.stage = stage
        self.conductor = conductor
        self.fallback = fallback
        self.resamples = resamples
        self.dry_run = dry_run
        self.capped = False

    async def play(self) -> None:
        """Rounds, until an answer stands or nothing more may be done."""
        stage = self.stage
        rounds = stage.budget.limits.rounds
        for number in range(max(rounds - stage.offset, 1)):
            played = self._unfinished() if number == 0 else None
            played = played or await self._decide(number)
            if played is None:
                return
            await stage.tell(Planned(number, played))
            if played.workflow is None or self.dry_run:
                return
            await execute(stage, played.workflow, number)
            if stage.limit or stage.exposed or waiting(stage.rounds):
                return
        self.capped = rounds > 1

    def _unfinished(self) -> Round | None:
        """The round that an earlier run began and that goes on now; it was paid there."""
        if self.stage.resumed is None:
            return None
        begun = self.stage.resumed.rounds[-1]
        decision = replace(begun.decision, draft=Draft(begun.decision.draft.text))
        now = self.stage.now()
        return Round(decision, (), begun.workflow, planning=Span(now, now))

    async def settle(self, pace: Pace) -> Ended:
        """How the run ended."""
        stage = self.stage
        if self.dry_run and stage.rounds and (planned := stage.rounds[-1].workflow):
            return _planned(planned, stage, pace)
        return settle(
            stage.rounds,
            seconds=stage.now(),
            limit=stage.limit,
            capped=self.capped,
            exposed=stage.exposed,
            fallback=self.fallback,
            parallel=stage.question.parallel_tool_calls is not False,
        )

    async def _decide(self, number: int) -> Round | None:
        """The round before it is played; None if a limit forbids even planning."""
        start = self.stage.now()
        drafts: list[Malformed] = []
        decision: Decision
        while True:
            try:
                self.stage.permit()
            except LimitReached:
                return self._unplanned(drafts, start)
            listener = PlanningListener(self.stage)
            try:
                decision = await self._plan(len(drafts), listener)
            except anyio.get_cancelled_exc_class():
                cut = listener.charged(Malformed(Draft(), "planning was cancelled", outage=True))
                drafts.append(cast("Malformed", cut))
                self._cancelled(number, drafts, start)
                raise
            if listener.forbidden:
                return self._unplanned(with_paid(decision, drafts), start)
            if not isinstance(decision, Malformed) or len(drafts) >= self.resamples:
                break
            drafts.append(decision)
        workflow = self._workflow(decision)
        span = Span(start, self.stage.now())
        return Round(decision, tuple(drafts), workflow, planning=span)

    def _cancelled(self, number: int, drafts: list[Malformed], start: float) -> None:
        """Record what planning cost until it was cut; the telling waits."""
        played = self._unplanned(drafts, start)
        if played is not None:
            event = Planned(number, played)
            self.stage.recorder.add(event)
            self.stage.late.append(event)

    def _unplanned(self, drafts: list[Malformed], start: float) -> Round | None:
        """What was drafted before the limit, so that its tokens are in the record."""
        if not drafts:
            return None
        span = Span(start, self.stage.now())
        return Round(drafts[-1], tuple(drafts[:-1]), None, planning=span)

    async def _plan(self, sample: int, listener: PlanningListener) -> Decision:
        """One decision of the conductor, charged and checked."""
        stage = self.stage
        brief = Brief(
            stage.question,
            stage.pool,
            stage.seed or 0,
            sample,
            stage.budget.limits.steps,
            stage.rounds,
        )
        decision = await self.conductor.plan(brief, listener)
        listener.charge(decision.draft.usage, decision.draft.cost)
        return check_decision(listener.charged(decision), brief)

    def _workflow(self, decision: Decision) -> Workflow | None:
        """What is played because of the decision."""
        if isinstance(decision, Plan):
            return decision.workflow
        rounds = self.stage.rounds
        stands = bool(rounds) and final_reply(rounds[-1]) is not None
        if isinstance(decision, Accepted) or stands or not self.fallback:
            return None
        best = self.stage.pool.ranked()[0]
        return Workflow((Step("", best.id),))

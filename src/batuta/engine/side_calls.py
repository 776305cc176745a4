"""Rounds that are run beside those that the conductor decides on."""

from __future__ import annotations

from dataclasses import replace

from batuta.core import (
    Event,
    Plan,
    Pool,
    Question,
    Reply,
    Round,
    RoundPlanned,
    Step,
    StepDelta,
    TimeSpan,
    WorkerId,
    Workflow,
)
from batuta.engine.approval import gate_round
from batuta.engine.context import RunContext
from batuta.engine.execute import execute_workflow
from batuta.engine.finalize import final_reply


async def run_extra_round(
    context: RunContext, plan: Plan, *, inner: RunContext | None = None, gated: bool = True
) -> Round | None:
    """Run one more round; None if somebody had to approve it and did not.

    Args:
        context: the run.
        plan: what is run.
        inner: the run with another question and other settings, for this round alone.
        gated: whether somebody may have to approve it.
    """
    now, number = context.elapsed(), len(context.recorder.rounds)
    round_ = Round(decision=plan, workflow=plan.workflow, planning=TimeSpan(now, now))
    if gated and await gate_round(context, number, round_) is not None:
        return None
    await context.publish(RoundPlanned(number, round_))
    await execute_workflow(inner or context, plan.workflow, number)
    return context.recorder.rounds[number]


async def run_single_step(
    context: RunContext, worker: WorkerId, reason: str, *, inner: RunContext | None = None
) -> Reply | None:
    """Ask a worker for another answer, in a round that may have to be approved; its reply.

    Args:
        context: the run.
        worker: the worker's id.
        reason: why, as a clause.
        inner: the run with another question and other settings, for this round alone.
    """
    plan = Plan(Workflow((Step(subtask="", worker=worker),)), reason=reason)
    ended = await run_extra_round(context, plan, inner=inner)
    return None if ended is None else final_reply(ended)


def context_aside(context: RunContext, question: Question, pool: Pool) -> RunContext:
    """Return the run as workers are asked whose words are never taken for the answer.

    None of their words is streamed, and nobody stands in for them.

    Args:
        context: the run.
        question: what they are asked.
        pool: they alone.
    """

    async def tell(event: Event) -> None:
        if context.emit is not None and not isinstance(event, StepDelta):
            await context.emit(event)

    return replace(
        context,
        question=question,
        pool=pool,
        resumed=None,
        settings=replace(context.settings, fallback=False, live=False),
        emit=context.emit and tell,
    )

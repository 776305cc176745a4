"""Extra rounds, which the conductor did not plan: samples, checks, repairs and second answers."""

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
    """Run one more round and return it; return None if a required approval was not given.

    Args:
        context: the run.
        plan: the plan to run.
        inner: the context to run the round in, such as one with another question; None: `context`.
        gated: whether approval rules apply.
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
    """Ask a worker for another answer in an extra round; return its reply, None if there is none.

    Args:
        context: the run.
        worker: the worker's id.
        reason: why the worker is asked, as a clause.
        inner: the context to run the round in, such as one with another question; None: `context`.
    """
    plan = Plan(Workflow((Step(subtask="", worker=worker),)), reason=reason)
    ended = await run_extra_round(context, plan, inner=inner)
    return None if ended is None else final_reply(ended)


def context_aside(context: RunContext, question: Question, pool: Pool) -> RunContext:
    """Return the context of an extra round whose replies are never the run's answer.

    No text is streamed, and no substitute is asked.

    Args:
        context: the run.
        question: the question of the extra round.
        pool: the workers of the extra round.
    """

    async def emit_without_text(event: Event) -> None:
        if context.emit is not None and not isinstance(event, StepDelta):
            await context.emit(event)

    return replace(
        context,
        question=question,
        pool=pool,
        resumed=None,
        settings=replace(context.settings, fallback=False, live=False),
        emit=context.emit and emit_without_text,
    )

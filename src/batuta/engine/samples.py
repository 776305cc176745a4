"""A question that is asked again, to see how often its answer comes out the same.

By default whoever wrote the answer is asked: nobody else has to see the question, no price need be
known, and of recorded answers its own samples said most (recipes/confidence).
"""

from __future__ import annotations

from dataclasses import replace

import anyio

from batuta.core import Plan, Pool, Question, RunFinished, Step, Worker, Workflow
from batuta.engine.confidence import JUDGED, ConfidenceModel, find_step
from batuta.engine.context import NO_TIMEOUT, RunContext
from batuta.engine.side_calls import context_aside, run_extra_round
from batuta.engine.step_prompt import lacked_tags

SAMPLING_TEMPERATURE = 0.7
"""Several samples of one worker differ at this temperature, where none is set above 0."""
_LEAST_PATIENCE = 10.0
_PATIENCE = 2.0
"""Samples may take so many times as long as their answer took."""


async def take_samples(
    context: RunContext, model: ConfidenceModel, conductor: str, ended: RunFinished
) -> None:
    """Ask the question of an answer again, where that was fitted or is to be.

    A sample that fails or cannot be paid is in the run as a step that failed, and changes nothing.
    Half of the time that is left to the run is kept for what comes after.

    Args:
        context: the run.
        model: how often, whom, and what was fitted.
        conductor: who wrote the workflow.
        ended: how the run ends without it.
    """
    reply = ended.reply
    if reply is None or reply.tool_calls or ended.outcome not in JUDGED or context.limit:
        return
    wrote = find_step(context.rounds, reply)
    wanted = None if wrote is None else model.find_samples(conductor, wrote.worker)
    if wrote is None or wanted is None:
        return
    worker = wanted.find_worker(context.pool, wrote.worker)
    if worker is None or worker.id not in context.clients:
        return
    if lacked_tags(context.question, context.pool, worker):
        return  # it cannot see what the answer is about
    step = Step(subtask="", worker=worker.id)
    plan = Plan(
        Workflow((step,) * wanted.count),
        reason=f"asks {worker.id} again, to see how often the answer is the same",
        purpose="samples",
    )
    aside = context_aside(context, _warm_question(context.question, worker), Pool((worker,)))
    inner = replace(
        aside,
        asks_whole=True,
        seed=context.question.sampling.seed if context.seed is None else context.seed,
        settings=replace(aside.settings, timeouts=NO_TIMEOUT),
    )
    with anyio.move_on_after(_limit_patience(context)):
        await run_extra_round(context, plan, inner=inner, gated=False)


def _warm_question(question: Question, worker: Worker) -> Question:
    """Return the question as it is asked again: once a call, with chance in it."""
    given = question.sampling
    own = given.temperature if given.temperature is not None else worker.sampling.temperature
    sampling = replace(
        given, temperature=own or SAMPLING_TEMPERATURE, seed=None, choices=None, logprobs=None
    )
    choice = "none" if question.tools else question.tool_choice
    return replace(question, sampling=sampling, tool_choice=choice)


def _limit_patience(context: RunContext) -> float:
    """Return the seconds that the samples may take."""
    patience = max(_LEAST_PATIENCE, _PATIENCE * context.elapsed())
    if context.deadline is None:
        return patience
    return min(patience, (context.deadline.deadline - anyio.current_time()) / 2)

"""Samples of an answer: the question is asked again, to measure how often the answer is the same.

By default the worker that wrote the answer is sampled: no other worker sees the question, no other
worker's price must be known, and on recorded answers this worker's samples were the most
informative (recipes/confidence).
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
"""Temperature of samples if the question's, or else the worker's, is 0 or not set."""
_MIN_SECONDS = 10.0
_RUN_TIME_FACTOR = 2.0
"""Samples may take this many times as long as the run so far, and at least `_MIN_SECONDS`."""


async def take_samples(
    context: RunContext, model: ConfidenceModel, conductor: str, ended: RunFinished
) -> None:
    """Sample the answer if the confidence model uses samples or collects them.

    A sample that fails or is unaffordable is recorded as a failed step and changes nothing. If the
    run has a deadline, the samples may take at most half of the remaining time.

    Args:
        context: the run.
        model: contains the setting of how often and which worker to sample.
        conductor: the name of the conductor.
        ended: the run's end without samples.
    """
    reply = ended.reply
    if reply is None or reply.tool_calls or ended.outcome not in JUDGED or context.limit:
        return
    answering = find_step(context.rounds, reply)
    setting = None if answering is None else model.find_samples(conductor, answering.worker)
    if answering is None or setting is None:
        return
    worker = setting.find_worker(context.pool, answering.worker)
    if worker is None or worker.id not in context.clients:
        return
    if lacked_tags(context.question, context.pool, worker):
        return  # the worker cannot see the question's attachments
    step = Step(subtask="", worker=worker.id)
    plan = Plan(
        Workflow((step,) * setting.count),
        reason=f"asks {worker.id} again, to see how often the answer is the same",
        purpose="samples",
    )
    aside = context_aside(context, _sampled_question(context.question, worker), Pool((worker,)))
    inner = replace(
        aside,
        asks_whole=True,
        seed=context.question.sampling.seed if context.seed is None else context.seed,
        settings=replace(aside.settings, timeouts=NO_TIMEOUT),
    )
    with anyio.move_on_after(_allowed_seconds(context)):
        await run_extra_round(context, plan, inner=inner, gated=False)


def _sampled_question(question: Question, worker: Worker) -> Question:
    """Return the question for one sample: one choice, at a temperature above 0, no tool calls."""
    given = question.sampling
    own = given.temperature if given.temperature is not None else worker.sampling.temperature
    sampling = replace(
        given, temperature=own or SAMPLING_TEMPERATURE, seed=None, choices=None, logprobs=None
    )
    choice = "none" if question.tools else question.tool_choice
    return replace(question, sampling=sampling, tool_choice=choice)


def _allowed_seconds(context: RunContext) -> float:
    seconds = max(_MIN_SECONDS, _RUN_TIME_FACTOR * context.elapsed())
    if context.deadline is None:
        return seconds
    return min(seconds, (context.deadline.deadline - anyio.current_time()) / 2)

"""The estimated tokens, dollars and seconds of a workflow, without calling a model."""

from __future__ import annotations

from collections.abc import Callable

from batuta.core import (
    Pool,
    Question,
    Reply,
    Request,
    Round,
    StepRun,
    TimeSpan,
    Usage,
    Worker,
    WorkerId,
    Workflow,
    WorkflowEstimate,
)
from batuta.core.formatting import format_seconds
from batuta.core.token_estimate import CHARACTERS_PER_TOKEN, estimate_request_tokens
from batuta.core.workflow import Plan
from batuta.engine.confidence import SampleSetting
from batuta.language import worker_messages
from batuta.usage import ZERO_COST, ZERO_USAGE, usage_cost

EXPECTED_OUTPUT_TOKENS = 400
"""Tokens assumed for a reply, unless its worker's cap is lower."""

LatencyLookup = Callable[[WorkerId], float | None]
"""Returns the observed seconds of a worker's call; None if the worker was not observed yet."""


def no_latency(_: WorkerId) -> float | None:
    """Return None: no worker's latency is known."""
    return None


def estimate_workflow(
    question: Question,
    workflow: Workflow,
    pool: Pool,
    *,
    output: int = EXPECTED_OUTPUT_TOKENS,
    latency: LatencyLookup = no_latency,
    again: SampleSetting | None = None,
) -> WorkflowEstimate:
    """Return the tokens, dollars and seconds if every step replies with about `output` tokens.

    The prompts are those of a run, with text of that length in place of the replies, and with all
    tools of the question for every step.

    Args:
        question: what is asked.
        workflow: the steps.
        pool: the workers, with those of all steps.
        output: tokens of a reply, unless its worker's cap is lower.
        latency: returns the seconds of a worker's call.
        again: the samples to take of the answer; None: no samples.
    """
    round_ = Round(decision=Plan(workflow), workflow=workflow)
    steps: list[StepRun] = []
    usages: list[Usage] = []
    total, cost = ZERO_USAGE, ZERO_COST
    for index, step in enumerate(workflow.steps):
        so_far = Round(decision=round_.decision, workflow=workflow, steps=tuple(steps))
        worker = pool[step.worker]
        tokens = min(output, worker.sampling.max_tokens or output)
        messages = worker_messages(question, workflow, index, (so_far,))
        request = Request(messages=messages, tools=question.tools)
        last = index == len(workflow) - 1
        output_tokens = tokens * (question.sampling.choices or 1) if last else tokens
        usage = Usage(
            calls=1, input=estimate_request_tokens(request), output=output_tokens, estimated=1
        )
        reply = Reply(text="x" * tokens * CHARACTERS_PER_TOKEN)
        steps.append(
            StepRun(
                index=index,
                planned=step.worker,
                worker=step.worker,
                request=request,
                result=reply,
                span=TimeSpan(0, 0),
            )
        )
        usages.append(usage)
        total, cost = total + usage, cost + usage_cost(usage, worker.price)
    seconds = _critical_path_seconds(workflow, latency)
    worker = None if again is None else again.find_worker(pool, workflow.steps[-1].worker)
    if again is None or worker is None:
        return WorkflowEstimate(steps=tuple(usages), usage=total, cost=cost, seconds=seconds)
    samples = estimate_samples(question, worker, again.count, output)
    takes = latency(worker.id)
    return WorkflowEstimate(
        steps=tuple(usages),
        usage=total + samples,
        cost=cost + usage_cost(samples, worker.price),
        seconds=None if seconds is None or takes is None else seconds + takes,
        samples=samples,
    )


def estimate_samples(
    question: Question, worker: Worker, count: int, output: int = EXPECTED_OUTPUT_TOKENS
) -> Usage:
    """Return the tokens of asking a worker the question `count` more times."""
    prompt = estimate_request_tokens(Request(messages=question.messages, tools=question.tools))
    tokens = min(output, worker.sampling.max_tokens or output)
    return Usage(calls=count, input=count * prompt, output=count * tokens, estimated=count)


def _critical_path_seconds(workflow: Workflow, latency: LatencyLookup) -> float | None:
    """Return the seconds of the slowest chain of steps; None if a worker's latency is unknown.

    Steps that do not read each other overlap.
    """
    ends: list[float] = []
    for step in workflow.steps:
        takes = latency(step.worker)
        if takes is None:
            return None
        ends.append(takes + max((ends[earlier] for earlier in step.access), default=0.0))
    return max(ends)


def describe_estimate(workflow: Workflow, expected: WorkflowEstimate) -> str:
    """Describe the workflow and its expected tokens, dollars and seconds, for people."""
    lines = [f"Plan: {len(workflow)} step{'s' if len(workflow) > 1 else ''}"]
    for index, (step, usage) in enumerate(zip(workflow.steps, expected.steps, strict=True)):
        reads = ", ".join(str(earlier + 1) for earlier in step.access)
        after = f" (reads {reads})" if reads else ""
        task = step.subtask or "Answer the question."
        lines.append(f"{index + 1}. {step.worker}{after}, about {usage.total} tokens: {task}")
    if calls := expected.samples.calls:
        lines.append(
            f"Then the question is asked again, {calls} time{'s' if calls > 1 else ''}, "
            "to see whether the answer is the same."
        )
    cost = expected.cost
    dollars = "an unknown price" if cost.is_unknown else f"${cost.usd:f}"
    if cost.usd and cost.unpriced_calls:
        calls = cost.unpriced_calls
        dollars += f" and {calls} call{'s' if calls > 1 else ''} of unknown price"
    time = "an unknown time" if expected.seconds is None else format_seconds(expected.seconds)
    lines.append(f"Expected: {expected.usage.total} tokens, {dollars}, {time}.")
    return "\n".join(lines)

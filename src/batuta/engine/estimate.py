"""What a workflow would cost, without calling anyone."""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core import Pool, Question, Reply, Request, Round, Span, StepRun, Usage, Workflow
from batuta.core.conductor import Plan
from batuta.core.estimate import CHARACTERS_PER_TOKEN, tokens_in
from batuta.core.usage import FREE, ZERO, Cost, cost_of
from batuta.language import worker_messages

EXPECTED_OUTPUT = 400
"""Tokens that a reply is taken to have, unless its worker is capped below that."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected tokens and dollars of a workflow; the conductor's own are not in it."""

    steps: tuple[Usage, ...]
    usage: Usage
    cost: Cost


def estimate(
    question: Question, workflow: Workflow, pool: Pool, *, output: int = EXPECTED_OUTPUT
) -> Estimate:
    """Tokens and dollars if every step replies with about `output` tokens.

    Prompts are the real ones, with text of that length where the replies will stand.
    """
    played = Round(Plan(workflow), workflow=workflow)
    steps: list[StepRun] = []
    usages: list[Usage] = []
    total, cost = ZERO, FREE
    for index, step in enumerate(workflow.steps):
        so_far = Round(played.decision, workflow=workflow, steps=tuple(steps))
        worker = pool[step.worker]
        tokens = min(output, worker.sampling.max_tokens or output)
        request = Request(worker_messages(question, workflow, index, (so_far,)))
        usage = Usage(calls=1, input=tokens_in(request), output=tokens, estimated=1)
        reply = Reply("x" * tokens * CHARACTERS_PER_TOKEN)
        steps.append(StepRun(index, step.worker, step.worker, request, reply, Span(0, 0)))
        usages.append(usage)
        total, cost = total + usage, cost + cost_of(usage, worker.price)
    return Estimate(tuple(usages), total, cost)

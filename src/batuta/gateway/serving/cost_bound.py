"""Upper bounds on costs, which are reserved before a run begins.

The bounds are of a run's first calls, except for an explored workflow, which is reserved whole.
Dollars for later calls are reserved one by one (`gateway.serving.reserved_budget`), so that a run
holds only what it has spent and what its calls in flight may still cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from batuta.core import (
    NO_SAMPLING,
    Limits,
    Pool,
    Price,
    Question,
    Request,
    Sampling,
    Usage,
    Worker,
    Workflow,
)
from batuta.core.cost_bound import (
    CallCostBound,
    PromptSize,
    bound_call_cost,
    max_prompt_tokens,
    measure_prompt,
)
from batuta.core.token_estimate import estimate_request_tokens

MAX_PREAMBLE_TOKENS = 4000
"""Tokens that a first step's prompt is assumed to have at most, besides the question."""
DRAFT_USAGE = Usage(calls=1, input=20_000, output=1024)
"""A conductor's draft: tokens of its prompt with examples, besides the question, and its output."""


@dataclass(frozen=True, slots=True)
class FirstCallsCost:
    """The bounds of what a run's first calls can cost."""

    usd: Decimal
    """Dollars to reserve for the first calls."""
    least_usd: Decimal
    """Dollars without which the run does not begin: a draft if there is one, and a short answer of
    the cheapest worker; at most the run's own limit."""


def estimate_prompt_tokens(question: Question) -> int:
    """Estimate the tokens of a worker's prompt with the whole question."""
    return estimate_request_tokens(Request(messages=question.messages, tools=question.tools))


def bound_first_calls(
    question: Question,
    pool: Pool,
    limits: Limits,
    *,
    direct: bool,
    acting: Worker | None = None,
    conductor_worker: Worker | None = None,
) -> FirstCallsCost:
    """Return the bounds of what a conductor's draft and the first step can cost together.

    Args:
        question: the question.
        pool: the workers that may answer.
        limits: the run's limits.
        direct: whether one worker is passed through, so that its call is the whole run.
        acting: the worker that is passed through if `direct`; None: the best worker.
        conductor_worker: the worker whose model conducts; None: no draft is paid for.
    """
    passed_through = pool.ranked()[:1] if acting is None else (acting,)
    workers = passed_through if direct else pool.workers
    requests = [_step_request(question, worker.sampling) for worker in workers]
    size = measure_prompt(requests[0])  # workers differ in their defaults, not in the prompt
    bounds = [
        _bound_step(worker, request, limits, size, direct=direct)
        for worker, request in zip(workers, requests, strict=True)
    ]
    draft = (
        Decimal(0) if conductor_worker is None else _draft_cost(question, limits, conductor_worker)
    )
    most = draft + max(bound.max_usd for bound in bounds)
    least = draft + min(bound.min_usd for bound in bounds)
    if limits.usd is None:
        return FirstCallsCost(most, least)
    own = Decimal(str(limits.usd))  # the engine makes no call that may exceed the limit
    return FirstCallsCost(min(most, own), min(least, own))


def least_call_usd(question: Question, pool: Pool, unknown: Price) -> Decimal:
    """Return the dollars below which no worker can be called, even for a short answer.

    Args:
        question: the question.
        pool: the workers that may answer.
        unknown: the price of workers without one.
    """
    requests = [_step_request(question, worker.sampling) for worker in pool.workers]
    size = measure_prompt(requests[0])
    return min(
        bound_call_cost(request, worker, unknown, size=size).min_usd
        for worker, request in zip(pool.workers, requests, strict=True)
    )


def bound_workflow(
    question: Question, workflows: Iterable[Workflow], pool: Pool, *, limits: Limits
) -> Decimal:
    """Return an upper bound on the dollars of these workflows together, if no call is retried.

    Each step is assumed to read the longest possible replies of all steps before it.
    """
    size, total, replies = measure_prompt(_step_request(question)), Decimal(0), 0
    for step in (step for workflow in workflows for step in workflow.steps):
        worker = pool[step.worker]
        request = _step_request(question, worker.sampling)
        bound = _bound_step(worker, request, limits, size, direct=False)
        price = worker.price or limits.unknown
        total += bound.max_usd + price.of(Usage(calls=0, input=replies))
        replies += bound.desired_output
    return total


def _step_request(question: Question, default: Sampling = NO_SAMPLING) -> Request:
    """Return the request of a step to a worker with these sampling defaults."""
    return Request(
        messages=question.messages,
        sampling=question.sampling.with_defaults(default),
        tools=question.tools,
        response_format=question.response_format,
        cache=question.cache,
    )


def _bound_step(
    worker: Worker, request: Request, limits: Limits, size: PromptSize, *, direct: bool
) -> CallCostBound:
    """Return the bound of a step's call; its prompt has a preamble unless the call is `direct`."""
    bound = bound_call_cost(request, worker, limits.unknown, size=size)
    if direct:
        return bound
    preamble = bound_call_cost(
        _filler_request(MAX_PREAMBLE_TOKENS), replace(worker, context_window=None), limits.unknown
    )
    return replace(bound, input_usd=bound.input_usd + preamble.input_usd)


def _draft_cost(question: Question, limits: Limits, conductor_worker: Worker) -> Decimal:
    """Return an upper bound on the dollars of the conductor's draft."""
    tokens = DRAFT_USAGE.input + max_prompt_tokens(
        Request(messages=question.messages), conductor_worker
    )
    price = conductor_worker.price or limits.unknown
    output = conductor_worker.sampling.max_tokens or DRAFT_USAGE.output
    return price.of(Usage(calls=1, input=tokens, output=output))


def _filler_request(tokens: int) -> Request:
    return Request(messages=(), sampling=Sampling(max_tokens=1), prefill="x" * tokens)

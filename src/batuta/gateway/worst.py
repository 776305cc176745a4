"""What is reserved for a run before it begins: the most that its first calls can cost. Pure.

What later calls can cost is reserved before each of them (`gateway.funds`), so that a run holds no
more than it has spent and its calls in flight may still cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from batuta.core import Limits, Pool, Question, Request, Sampling, Usage, Worker
from batuta.core.bound import CallBound, bound_of, max_tokens_in
from batuta.core.estimate import tokens_in

PREAMBLE = 4000
"""Tokens that the prompt of a step has at most besides the question, where nothing was said yet."""
DRAFT = Usage(1, input=20_000, output=1024)
"""A draft of a workflow: its prompt besides the question, with examples, and its length."""


@dataclass(frozen=True, slots=True)
class FirstCalls:
    """Dollars with which a run begins."""

    usd: Decimal
    """As its first calls want them."""
    least: Decimal
    """Below which it does not begin: with the answer shortened, by the cheapest worker."""


def prompt_of(question: Question) -> int:
    """About how many tokens the question has."""
    return tokens_in(Request(question.messages, tools=question.tools))


def first_calls(
    question: Question, pool: Pool, limits: Limits, *, direct: bool, mind: Worker | None = None
) -> FirstCalls:
    """The most that a draft and the first step can cost.

    Args:
        question: what is asked.
        pool: who may play.
        limits: of the run.
        direct: one worker is passed through, so the first call is the run.
        mind: the worker whose model conducts, if one does.
    """
    workers = pool.ranked()[:1] if direct else pool.workers
    bounds = [_step(worker, question, limits, direct=direct) for worker in workers]
    draft = Decimal(0) if mind is None else _draft(question, limits, mind)
    most = draft + max(bound.most_usd for bound in bounds)
    least = draft + min(bound.least_usd for bound in bounds)
    if limits.usd is None:
        return FirstCalls(most, least)
    own = Decimal(str(limits.usd))  # the engine makes no call that costs more
    return FirstCalls(min(most, own), min(least, own))


def _step(worker: Worker, question: Question, limits: Limits, *, direct: bool) -> CallBound:
    """A step's call, as the engine bounds it."""
    request = Request(
        question.messages,
        question.sampling.over(worker.sampling),
        question.tools,
        response_format=question.response_format,
    )
    bound = bound_of(request, worker, limits.unknown)
    if direct:
        return bound
    preamble = bound_of(_nothing(PREAMBLE), replace(worker, context_window=None), limits.unknown)
    return replace(bound, input_usd=bound.input_usd + preamble.input_usd)


def _draft(question: Question, limits: Limits, mind: Worker) -> Decimal:
    """A draft's call."""
    tokens = DRAFT.input + max_tokens_in(Request(question.messages), mind)
    price = mind.price or limits.unknown
    return price.of(Usage(1, input=tokens, output=DRAFT.output))


def _nothing(tokens: int) -> Request:
    return Request((), Sampling(max_tokens=1), prefill="x" * tokens)

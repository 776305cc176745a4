"""Estimates what a request would have cost if the best single worker had answered it. Pure.

Nobody asks that worker, so how many tokens it would have written is not known: the answer's own are
taken. Where it is not certain, the estimate is the lower one, so that no saving is made up.
"""

from __future__ import annotations

from decimal import Decimal

from batuta.conductors.sessions.state import SessionThread
from batuta.core import Question, Reply, Request, Run, Worker
from batuta.core.token_estimate import estimate_request_tokens
from batuta.engine.step_prompt import is_plain
from batuta.usage import Usage


def estimate_alone(
    run: Run,
    best: Worker,
    question: Question,
    thread: SessionThread,
    *,
    now: float,
    warm_seconds: float,
) -> Decimal | None:
    """Estimate the dollars that the best single worker would have cost.

    It would have made one call with the conversation as it stands; its provider's cache would hold
    all that anybody has read of it lately. A run that gave nothing is worth nothing.

    Args:
        run: what was done instead.
        best: the worker.
        question: the conversation.
        thread: what was read of it before.
        now: seconds since the epoch.
        warm_seconds: how long a provider's cache holds a prompt.

    Returns:
        None if it cannot be known: a price is missing.
    """
    price = best.price
    if price is None or run.cost.unpriced_calls:
        return None
    step = run.answering_step
    if step is None or not isinstance(step.result, Reply):
        return Decimal(0)
    usage, round_ = step.result.usage, run.rounds[-1]
    planned = round_.workflow.steps[-1] if round_.workflow is not None else None
    is_alone = len(run.steps) == 1 and planned is not None and is_plain(planned)
    tokens, cached = usage.input, usage.cached
    if not is_alone or usage.calls != 1:
        asked = Request(messages=question.messages, tools=question.tools)
        tokens, cached = min(tokens, estimate_request_tokens(asked)), 0
    read = (warm.tokens for warm in thread.warm.values() if now - warm.at <= warm_seconds)
    cached = min(tokens, max(cached, *read, 0))
    usd = price.of(Usage(calls=1, input=tokens, cached=cached, output=usage.output))
    is_best = is_alone and step.worker == best.id
    return min(usd, step.result.cost.usd) if is_best else usd

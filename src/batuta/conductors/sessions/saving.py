"""Estimates what a request would have cost if the best single worker had answered it. Pure.

The best worker is assumed to write as many output tokens as the actual answer has.
In doubt the lower estimate is used, so that savings are not overstated.
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
    """Return the estimated dollars that the best single worker would have cost.

    The worker would have made one call with the unchanged conversation, and its provider's cache
    would contain the longest prompt that any worker was sent in the last `warm_seconds`. A run
    without an answer counts as 0.

    Args:
        run: the actual run.
        best: the best single worker.
        question: the conversation.
        thread: the session's thread, with the prompts that workers were sent before.
        now: seconds since the epoch.
        warm_seconds: seconds for which a provider caches a prompt.

    Returns:
        The dollars; None if the best worker or a call of the run has no price.
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
        unchanged = Request(messages=question.messages, tools=question.tools)
        tokens, cached = min(tokens, estimate_request_tokens(unchanged)), 0
    read = (warm.tokens for warm in thread.warm.values() if now - warm.at <= warm_seconds)
    cached = min(tokens, max(cached, *read, 0))
    usd = price.of(Usage(calls=1, input=tokens, cached=cached, output=usage.output))
    is_best = is_alone and step.worker == best.id
    return min(usd, step.result.cost.usd) if is_best else usd

"""How much effort a request asks for, and what that means for an orchestra.

One table for every dialect: `reasoning_effort` of chat completions, `reasoning.effort` of
responses, the budget of `thinking` of messages. docs/api.md shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from types import MappingProxyType

from batuta.core import Limits, Pool, Price, Worker
from batuta.core.usage import ASSUMED_PRICE
from batuta.gateway.models import Served
from batuta.solvers import best


@dataclass(frozen=True, slots=True)
class Effort:
    """What one word of effort buys; the operator's and the caller's own limits bind besides."""

    steps: int | None
    """Of a workflow at most; None: as many as the served model allows."""
    rounds: int
    """Workflows, each correcting the one before."""
    share: float
    """Of the pool that plays: the cheapest workers first."""
    money: float
    """Share of the served model's limit in dollars."""
    plans: bool = True
    """Whether a conductor writes a workflow; False: the best worker answers alone."""


EFFORTS: Mapping[str, Effort] = MappingProxyType({
    "none": Effort(1, 1, 1.0, 0.25, plans=False),
    "minimal": Effort(1, 1, 0.5, 0.25),
    "low": Effort(2, 1, 0.75, 0.5),
    "medium": Effort(3, 1, 1.0, 0.75),
    "high": Effort(None, 1, 1.0, 1.0),
    "xhigh": Effort(None, 2, 1.0, 1.0),
    "max": Effort(None, 3, 1.0, 1.0),
})  # fmt: skip
USUAL = "high"
"""What a request gets that names no effort."""

_THINKING = ((1_024, "minimal"), (4_096, "low"), (8_192, "medium"), (16_384, "high"))
_LONG_THOUGHT = 32_768


def effort_of_thinking(budget_tokens: int | None) -> str:
    """The word for a budget of thinking tokens; None is no thinking at all."""
    if budget_tokens is None:
        return "none"
    for most, word in _THINKING:
        if budget_tokens <= most:
            return word
    return "xhigh" if budget_tokens <= _LONG_THOUGHT else "max"


def ceiling_of(served: Served) -> Limits:
    """The most that a caller may ask for: rounds that it must ask for are not played unasked."""
    limits = served.limits
    if served.most_rounds <= limits.rounds:
        return limits
    return replace(limits, rounds=served.most_rounds)


def limits_of(word: str | None, served: Served) -> Limits:
    """What a request of that effort may spend if it says nothing else."""
    limits = served.limits
    if word is None or not _conducts(served):
        return limits
    effort, ceiling = EFFORTS[word], ceiling_of(served)
    return replace(
        limits,
        steps=min(effort.steps or limits.steps, limits.steps),
        rounds=min(effort.rounds, ceiling.rounds),
        usd=None if limits.usd is None else limits.usd * effort.money,
    )


def planner_of(word: str | None, served: Served) -> Served:
    """The served model as a request of that effort sees it: without effort nobody plans."""
    if word is None or EFFORTS[word].plans or not _conducts(served):
        return served
    return replace(served, conductor=best())


def players_of(word: str | None, served: Served, allowed: Pool) -> Pool:
    """Who plays of those that are allowed to."""
    if word is None or not _conducts(served):
        return allowed
    return cheapest(allowed, EFFORTS[word].share, served.limits.unknown)


def cheapest(pool: Pool, share: float, unknown: Price = ASSUMED_PRICE) -> Pool:
    """That share of the pool, the cheapest first and never nobody; equal prices stay together."""
    if share >= 1:
        return pool
    prices = sorted(_price(worker, unknown) for worker in pool)
    dearest = prices[max(-int(-len(prices) * share // 1), 1) - 1]
    return Pool(tuple(worker for worker in pool if _price(worker, unknown) <= dearest))


def _price(worker: Worker, unknown: Price) -> Decimal:
    """What a million tokens cost, read and written alike; an unknown price counts as told."""
    price = worker.price or unknown
    return price.input + price.output


def _conducts(served: Served) -> bool:
    """Whether a workflow is written for it: only there is effort more than a worker's own."""
    return not served.direct and served.solver is None and served.calls is None

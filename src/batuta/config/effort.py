"""The effort that a request asks for, and the limits of a run at each effort.

One table serves every API: `reasoning_effort` of chat completions, `reasoning.effort` of
responses, the budget of `thinking` of messages. docs/api.md shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from batuta.conductors import best_single_worker
from batuta.conductors.sessions.patterns import SessionPattern
from batuta.config.served_systems import ServedSystem
from batuta.core import Conductor, Limits, Pool, Price
from batuta.core.conductor import needed_rounds
from batuta.core.worker import token_price
from batuta.usage import ASSUMED_PRICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The limits of an effort level, besides the limits of the operator and of the request."""

    steps: int | None
    """Maximum number of steps of a workflow; None: the served model's limit."""
    rounds: int
    """Maximum number of rounds; a conductor that needs more gets them, up to the model's maximum.
    """
    pool_share: float
    """Share of the pool that may answer, in (0, 1], the cheapest workers first."""
    usd_share: float
    """Share of the served model's limit in dollars, in (0, 1]."""
    uses_conductor: bool = True
    """Whether a conductor writes a workflow; False: the best worker answers alone."""


EFFORTS: Mapping[str, Effort] = MappingProxyType({
    "none": Effort(steps=1, rounds=1, pool_share=1.0, usd_share=0.25, uses_conductor=False),
    "minimal": Effort(steps=1, rounds=1, pool_share=0.5, usd_share=0.25),
    "low": Effort(steps=2, rounds=1, pool_share=0.75, usd_share=0.5),
    "medium": Effort(steps=3, rounds=1, pool_share=1.0, usd_share=0.75),
    "high": Effort(steps=None, rounds=1, pool_share=1.0, usd_share=1.0),
    "xhigh": Effort(steps=None, rounds=2, pool_share=1.0, usd_share=1.0),
    "max": Effort(steps=None, rounds=3, pool_share=1.0, usd_share=1.0),
})  # fmt: skip
_THINKING_BUDGETS = ((1_024, "minimal"), (4_096, "low"), (8_192, "medium"), (16_384, "high"))
_XHIGH_BUDGET = 32_768


def effort_of_thinking(budget_tokens: int | None) -> str:
    """Return the effort level for a budget of thinking tokens; None means no thinking."""
    if budget_tokens is None:
        return "none"
    for most, word in _THINKING_BUDGETS:
        if budget_tokens <= most:
            return word
    return "xhigh" if budget_tokens <= _XHIGH_BUDGET else "max"


class Conducted(Protocol):
    """A system, or a served model; it may have a conductor."""

    @property
    def conductor(self) -> Conductor | None:
        """The conductor; None: a baseline answers."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of a run."""
        ...

    @property
    def max_rounds(self) -> int:
        """Maximum number of rounds that a request may ask for."""
        ...

    @property
    def writes_workflows(self) -> bool:
        """True if a workflow is written for each question; else only the worker gets the effort."""
        ...


def limits_for_effort(level: str, system: Conducted) -> Limits:
    """Return the system's limits at that effort, for a request that sets none itself."""
    limits = system.limits
    if not system.writes_workflows:
        return limits
    effort, max_rounds = EFFORTS[level], max(system.max_rounds, limits.rounds)
    needed = 1 if system.conductor is None else needed_rounds(system.conductor)
    return replace(
        limits,
        steps=min(effort.steps or limits.steps, limits.steps),
        rounds=min(max(effort.rounds, needed), max_rounds),
        usd=None if limits.usd is None else limits.usd * effort.usd_share,
    )


def conductor_for_effort(level: str, system: Conducted) -> Conductor | None:
    """Return the conductor at that effort; None: a baseline answers.

    At `none` the best worker answers alone. A session pattern, and the conductor of a system that
    writes no workflows, are kept at every effort.
    """
    plans_nothing = isinstance(system.conductor, SessionPattern)
    if EFFORTS[level].uses_conductor or not system.writes_workflows or plans_nothing:
        return system.conductor
    return best_single_worker()


def pool_for_effort(level: str, system: Conducted, allowed: Pool) -> Pool:
    """Return those of the allowed workers that may answer at that effort."""
    if not system.writes_workflows:
        return allowed
    return cheapest_workers(allowed, EFFORTS[level].pool_share, system.limits.unknown)


def narrow_system(system: ServedSystem) -> ServedSystem:
    """Return the system narrowed to its own default effort; without one, unchanged."""
    level = system.effort
    if level is None:
        return system
    return replace(
        system,
        conductor=conductor_for_effort(level, system) or system.conductor,
        pool=pool_for_effort(level, system, system.pool),
        limits=limits_for_effort(level, system),
    )


def cheapest_workers(pool: Pool, share: float, unknown: Price = ASSUMED_PRICE) -> Pool:
    """Return that share of the pool, the cheapest workers, at least one.

    Workers that cost as much as the most expensive of them are included too.

    Args:
        pool: the workers.
        share: the share of the pool, in (0, 1].
        unknown: the price assumed for a worker without a price.
    """
    if share >= 1:
        return pool
    prices = sorted(token_price(worker, unknown) for worker in pool)
    highest = prices[max(-int(-len(prices) * share // 1), 1) - 1]
    return Pool(tuple(worker for worker in pool if token_price(worker, unknown) <= highest))

"""What it costs to leave the acting worker for another one, and what that should gain. Pure.

The acting worker has read the conversation, and its provider's cache holds it; another one reads
it anew and pays the difference between the two prices of input. A cache that is still warm, and a
provider that bills no caches, cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from statistics import fmean

from batuta.conductors.sessions.rules import SessionRules
from batuta.conductors.sessions.state import SessionThread
from batuta.core import Worker
from batuta.core.formatting import format_usd
from batuta.usage import MILLION

_UNKNOWN_CHANCE = 0.5
"""The chance of a worker of which nothing is measured or believed."""
_LEFT_AFTER_FAILURE = 0.5
"""The part of a worker's chance that is left after each failure in the present task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A change of the acting worker that may be made."""

    leaves: Worker
    takes: Worker
    cost_usd: Decimal
    """Dollars of cache that it costs."""
    gain_usd: Decimal
    """Dollars that it is expected to gain."""
    pays: bool
    """Whether the gain is above cost and margin."""

    @property
    def reason(self) -> str:
        """The decision as a clause with figures."""
        cost, gain = (format_usd(round(usd, 4)) for usd in (self.cost_usd, self.gain_usd))
        if self.pays:
            said = "no cache is lost" if not self.cost_usd else f"it costs {cost} of cache"
            return (
                f"{self.takes.id} takes over from {self.leaves.id}: {said} and is expected to "
                f"gain {gain}"
            )
        return (
            f"stayed with {self.leaves.id}: a switch to {self.takes.id} would cost {cost} of cache "
            f"and is expected to gain {gain}"
        )


def price_switch(
    thread: SessionThread,
    leaves: Worker,
    takes: Worker,
    *,
    tokens: int,
    failures: int,
    now: float,
    rules: SessionRules,
) -> Switch:
    """Price the change of the acting worker.

    Args:
        thread: what each worker has read of the conversation.
        leaves: the acting worker.
        takes: the other one.
        tokens: about how many tokens the conversation has.
        failures: failures of tools in the present task.
        now: seconds since the epoch.
        rules: the constants.
    """
    cost = cold_cost(thread, takes, tokens=tokens, now=now, rules=rules)
    gain = max(0.0, solving_chance(takes) - solving_chance(leaves) * _LEFT_AFTER_FAILURE**failures)
    gain_usd = Decimal(str(round(gain, 6))) * rules.worth_usd
    pays = takes.id != leaves.id and gain_usd > rules.margin_usd + cost
    return Switch(leaves=leaves, takes=takes, cost_usd=cost, gain_usd=gain_usd, pays=pays)


def cold_cost(
    thread: SessionThread, worker: Worker, *, tokens: int, now: float, rules: SessionRules
) -> Decimal:
    """Return the dollars that the worker pays for what its provider's cache does not hold."""
    warm = thread.warm.get(worker.id)
    held = warm.tokens if warm is not None and now - warm.at <= rules.warm_seconds else 0
    price = worker.price or rules.unknown
    cached = price.input if price.cached is None else price.cached
    return max(0, tokens - held) * max(Decimal(0), price.input - cached) / MILLION


def solving_chance(worker: Worker) -> float:
    """Return how likely the worker is believed to solve a task."""
    if worker.strength is not None:
        return worker.strength
    shares = [skill.share for skill in worker.skills]
    return fmean(shares) if shares else _UNKNOWN_CHANCE

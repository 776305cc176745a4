"""The constants by which sessions are conducted, as the settings say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from batuta.core.tool_classes import ToolClasses
from batuta.usage import ASSUMED_PRICE, Price


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """The constants by which sessions are conducted."""

    tool_classes: ToolClasses = ToolClasses()
    """They say what the clients' tools do."""
    worth_usd: Decimal = Decimal(1)
    """Dollars that a solved task is worth."""
    margin_usd: Decimal = Decimal("0.01")
    """Dollars that a switch of workers must gain beyond what it costs."""
    warm_seconds: float = 300.0
    """Seconds for which a provider keeps the prompt that a worker has read."""
    failures: int = 2
    """Failures of tools within a task after which `escalate` hands over."""
    stall_actions: int = 25
    """Actions in a row without a change after which a task has stalled."""
    consultations: int = 5
    """How often a session's second model is asked, to advise or to judge, at most."""
    max_cost_usd: Decimal | None = None
    """Dollars that a session may cost; None: any."""
    max_turns: int | None = None
    """Turns that a session may have; None: any number."""
    unknown: Price = ASSUMED_PRICE
    """The price of a worker that has none."""


DEFAULT_RULES = SessionRules()

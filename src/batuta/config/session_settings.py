"""The settings of sessions, `[sessions]`: what is conducted, and by which constants."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from batuta.conductors.sessions.rules import DEFAULT_RULES, SessionRules
from batuta.conductors.sessions.turn import MOST_ACTIONS
from batuta.config.aliases import LONGEST_NAME
from batuta.config.settings_file import StrictModel
from batuta.core.tool_classes import ToolClass, ToolClasses

ToolName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class SessionsSetting(StrictModel):
    """How the sessions of coding agents are served; see docs/sessions.md."""

    conduct_auxiliary: bool = False
    """Whether also what agents ask for themselves, such as titles, is conducted."""
    tools: dict[ToolName, ToolClass] = Field(default={})
    """The classes of clients' tools where they are not what name and schema say."""

    worth_usd: Decimal = Field(default=DEFAULT_RULES.worth_usd, ge=0)
    """Dollars that a solved task is worth."""
    margin_usd: Decimal = Field(default=DEFAULT_RULES.margin_usd, ge=0)
    """Dollars that a switch of workers must gain beyond what it costs."""
    warm_s: float = Field(default=DEFAULT_RULES.warm_seconds, ge=0)
    """Seconds for which a provider's cache is taken to hold a prompt."""
    failures: int = Field(default=DEFAULT_RULES.failures, ge=1, le=MOST_ACTIONS)
    """Failures of tools within a task after which `escalate` hands over."""
    stall_actions: int = Field(default=DEFAULT_RULES.stall_actions, ge=2, lt=MOST_ACTIONS)
    """Actions in a row without a change after which a task has stalled."""
    consultations: int = Field(default=DEFAULT_RULES.consultations, ge=0)
    """How often a session's second model advises or judges, at most."""
    max_cost_usd: Decimal | None = Field(default=None, gt=0)
    """Dollars that a session may cost; None: any."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turns that a session may have; None: any number."""

    @property
    def rules(self) -> SessionRules:
        """Return the rules by which sessions are conducted."""
        return SessionRules(
            tool_classes=ToolClasses(self.tools),
            worth_usd=self.worth_usd,
            margin_usd=self.margin_usd,
            warm_seconds=self.warm_s,
            failures=self.failures,
            stall_actions=self.stall_actions,
            consultations=self.consultations,
            max_cost_usd=self.max_cost_usd,
            max_turns=self.max_turns,
        )
